-- The publication: the outbox alone, and inserts alone, so that no UPDATE or DELETE of the application needs a replica
-- identity. It must exist before the slot: the slot reads the catalog as of each change. Setup puts the configured
-- names in place of walpost and outbox_messages and, on 15+, adds the list of the columns that are mapped.
CREATE PUBLICATION walpost FOR TABLE outbox_messages WITH (publish = 'insert', publish_via_partition_root = true);
