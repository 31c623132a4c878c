-- Whether the publication carries the table's schema, which is possible on 15+.
EXISTS (
        SELECT FROM pg_publication_namespace s JOIN pg_namespace n ON n.oid = s.pnnspid
        WHERE s.pnpubid = p.oid AND n.nspname = $2::text)
