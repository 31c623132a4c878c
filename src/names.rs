//! Names in SQL: reading the table's name as SQL reads it, and writing any name so that Postgres reads it back as it
//! is. Nothing that a user configures reaches a statement in any other way.

use std::fmt;

/// Words that Postgres 14 to 18 do not take as a bare table or column name.
const RESERVED: &[&str] = &[
    "all",
    "analyse",
    "analyze",
    "and",
    "any",
    "array",
    "as",
    "asc",
    "asymmetric",
    "authorization",
    "binary",
    "both",
    "case",
    "cast",
    "check",
    "collate",
    "collation",
    "column",
    "concurrently",
    "constraint",
    "create",
    "cross",
    "current_catalog",
    "current_date",
    "current_role",
    "current_schema",
    "current_time",
    "current_timestamp",
    "current_user",
    "default",
    "deferrable",
    "desc",
    "distinct",
    "do",
    "else",
    "end",
    "except",
    "false",
    "fetch",
    "for",
    "foreign",
    "freeze",
    "from",
    "full",
    "grant",
    "group",
    "having",
    "ilike",
    "in",
    "initially",
    "inner",
    "intersect",
    "into",
    "is",
    "isnull",
    "join",
    "lateral",
    "leading",
    "left",
    "like",
    "limit",
    "localtime",
    "localtimestamp",
    "natural",
    "not",
    "notnull",
    "null",
    "offset",
    "on",
    "only",
    "or",
    "order",
    "outer",
    "overlaps",
    "placing",
    "primary",
    "references",
    "returning",
    "right",
    "select",
    "session_user",
    "similar",
    "some",
    "symmetric",
    "system_user",
    "table",
    "tablesample",
    "then",
    "to",
    "trailing",
    "true",
    "union",
    "unique",
    "user",
    "using",
    "variadic",
    "verbose",
    "when",
    "where",
    "window",
    "with",
];

/// A name as it is written in SQL: bare where that means the same, else in double quotes.
pub fn quote_ident(name: &str) -> String {
    let mut bytes = name.bytes();
    let bare = bytes.next().is_some_and(|first| first.is_ascii_lowercase() || first == b'_')
        && bytes.all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_')
        && !RESERVED.contains(&name);
    if bare { name.to_owned() } else { format!("\"{}\"", name.replace('"', "\"\"")) }
}

/// A text as it is written in SQL. The `E` form is used where a backslash is in it, so that no setting of
/// `standard_conforming_strings` changes what is read.
pub fn quote_literal(text: &str) -> String {
    let doubled = text.replace('\'', "''");
    if doubled.contains('\\') { format!("E'{}'", doubled.replace('\\', "\\\\")) } else { format!("'{doubled}'") }
}

/// Puts values in place of whole words of a statement of `sql/`, in one pass, and leaves its comment lines out: a value
/// is never searched for words again, and a value with a line break cannot end a comment.
pub(crate) fn fill(statement: &str, words: &[(&str, &str)]) -> String {
    let code = statement_of(statement);
    let mut filled = String::with_capacity(code.len());
    let mut rest = code.as_str();
    while !rest.is_empty() {
        let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
        let inside = rest.starts_with(is_word);
        let end = rest.find(|c| is_word(c) != inside).unwrap_or(rest.len());
        let (token, after) = rest.split_at(end);
        filled.push_str(words.iter().find(|(word, _)| *word == token).map_or(token, |(_, value)| value));
        rest = after;
    }
    filled
}

/// The statement of a file of `sql/` without its comment lines.
pub(crate) fn statement_of(file: &str) -> String {
    file.lines().filter(|line| !line.trim_start().starts_with("--")).collect::<Vec<_>>().join("\n").trim().to_owned()
}

/// A table's name, with or without a schema, each part as the catalog holds it. `Display` quotes it for SQL.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct TableName {
    pub schema: Option<String>,
    pub name: String,
}

/// Why a text is not a table's name.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("{text:?} is not a table's name: {why}; write name, schema.name, or quote odd parts: \"Odd Name\"")]
pub struct TableNameError {
    text: String,
    why: &'static str,
}

impl TableName {
    /// Reads a name as SQL does: bare parts fold to lower case, quoted parts stay, a doubled quote is one quote.
    pub fn parse(text: &str) -> Result<TableName, TableNameError> {
        let error = |why| TableNameError { text: text.to_owned(), why };
        let mut parts = Vec::new();
        let mut rest = text.trim();
        loop {
            let (part, after) = match rest.strip_prefix('"') {
                Some(quoted) => quoted_part(quoted).ok_or_else(|| error("a double quote is not closed"))?,
                None => {
                    let (part, after) = rest.split_at(rest.find(['.', '"']).unwrap_or(rest.len()));
                    if part.starts_with(|c: char| c.is_ascii_digit())
                        || !part.chars().all(|c| c == '_' || c == '$' || c.is_alphanumeric())
                    {
                        return Err(error("a part with this character must be in double quotes"));
                    }
                    (part.to_lowercase(), after)
                }
            };
            if part.is_empty() {
                return Err(error("a part is empty"));
            }
            if part.len() > 63 {
                return Err(error("a part is longer than the 63 bytes that Postgres keeps"));
            }
            if part.contains('\0') {
                return Err(error("a name cannot hold a zero byte"));
            }
            parts.push(part);
            match after.strip_prefix('.') {
                Some(next) => rest = next,
                None if after.is_empty() => break,
                None => return Err(error("something follows a quoted part")),
            }
        }
        let mut parts = parts.into_iter();
        match (parts.next(), parts.next(), parts.next()) {
            (Some(name), None, None) => Ok(TableName { schema: None, name }),
            (Some(schema), Some(name), None) => Ok(TableName { schema: Some(schema), name }),
            _ => Err(error("it has more than two parts")),
        }
    }
}

/// What a quoted part holds, and what follows its closing quote.
fn quoted_part(text: &str) -> Option<(String, &str)> {
    let mut part = String::new();
    let mut rest = text;
    loop {
        let (before, after) = rest.split_once('"')?;
        part.push_str(before);
        match after.strip_prefix('"') {
            Some(more) => {
                part.push('"');
                rest = more;
            }
            None => return Some((part, after)),
        }
    }
}

impl fmt::Display for TableName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(schema) = &self.schema {
            write!(f, "{}.", quote_ident(schema))?;
        }
        f.write_str(&quote_ident(&self.name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(schema: Option<&str>, name: &str) -> TableName {
        TableName { schema: schema.map(str::to_owned), name: name.to_owned() }
    }

    #[test]
    fn a_table_is_read_as_sql_reads_it() {
        for (text, expected) in [
            ("outbox_messages", name(None, "outbox_messages")),
            ("App.Outbox", name(Some("app"), "outbox")),
            ("\"Odd Name\"", name(None, "Odd Name")),
            ("app.\"a.b\"", name(Some("app"), "a.b")),
            ("\"a\"\"b\".c", name(Some("a\"b"), "c")),
            (" outbox ", name(None, "outbox")),
            ("straße", name(None, "straße")),
        ] {
            assert_eq!(TableName::parse(text), Ok(expected), "{text}");
        }
    }

    #[test]
    fn what_is_no_table_name_is_refused() {
        let long = "x".repeat(64);
        for text in ["", ".", "a.", ".a", "a.b.c", "\"open", "a b", "a;b", "\"a\"b", "a\"b\"", "\"\"", "1a", &long] {
            assert!(TableName::parse(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn names_are_quoted_only_where_they_must_be() {
        assert_eq!(quote_ident("outbox_messages"), "outbox_messages");
        for (bare, quoted) in
            [("Order", "\"Order\""), ("order", "\"order\""), ("a\"b", "\"a\"\"b\""), ("1a", "\"1a\""), ("ä", "\"ä\"")]
        {
            assert_eq!(quote_ident(bare), quoted);
        }
        assert_eq!(name(Some("My Schema"), "t").to_string(), "\"My Schema\".t");
    }

    #[test]
    fn literals_survive_quotes_and_backslashes() {
        assert_eq!(quote_literal("o'clock"), "'o''clock'");
        assert_eq!(quote_literal("a\\'b"), "E'a\\\\''b'");
    }

    #[test]
    fn filling_in_replaces_whole_words_once() {
        let file = "-- a comment about t\nSELECT t, t_id FROM s.t; -- t\n";
        assert_eq!(fill(file, &[("t", "s"), ("s", "\"T\"")]), "SELECT s, t_id FROM \"T\".s; -- s");
    }

    #[test]
    fn a_quoted_name_reads_back_as_it_was() {
        for odd in ["a", "A b", "x\"y", "select", "ünï", "a.b"] {
            let table = name(Some(odd), odd);
            assert_eq!(TableName::parse(&table.to_string()), Ok(table));
        }
    }
}
