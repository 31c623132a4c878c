-- Whether schema walpost is there.
SELECT EXISTS (SELECT FROM pg_namespace WHERE nspname = 'walpost')
