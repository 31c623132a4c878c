-- The version of schema walpost.
SELECT max(version) FROM walpost.schema_version
