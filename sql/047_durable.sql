-- Waits for the commit of this session to be on this server's disk, if the session would not wait at all.
SELECT set_config('synchronous_commit', 'local', false) WHERE current_setting('synchronous_commit') = 'off'
