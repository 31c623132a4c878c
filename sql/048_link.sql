-- How this session runs: its TLS version, or null; and whether it stays on the server's machine.
SELECT CASE WHEN s.ssl THEN s.version END,
       coalesce(inet_client_addr() <<= '127.0.0.0/8' OR host(inet_client_addr()) = '::1', true)
FROM pg_stat_ssl s
WHERE s.pid = pg_backend_pid()
