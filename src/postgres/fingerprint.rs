//! What a change of the fingerprint means, in words. The fingerprint itself is made by the server
//! (`sql/020_fingerprint.sql`); here two of them are compared. Pure.

/// What was done to the publication or the table between two fingerprints, as one clause that follows a colon.
pub fn difference(recorded: &str, now: &str) -> String {
    let part = |fingerprint: &str, name: &str| -> String {
        let parts = fingerprint.split(' ').filter_map(|part| part.split_once('='));
        parts.filter(|(key, _)| *key == name).map(|(_, value)| value.to_owned()).collect()
    };
    let mut said = Vec::new();
    for name in ["publication", "tables", "schemas", "table"] {
        let (before, after) = (part(recorded, name), part(now, name));
        if before == after {
            continue;
        }
        let (before, after) = (Parsed::of(&before), Parsed::of(&after));
        said.push(match name {
            "publication" if after.is_none => "the publication is gone",
            "publication" if before.oid != after.oid => "the publication was dropped and made anew",
            "publication" => "the publication was altered",
            "tables" if after.is_none => "no table is named by the publication any more",
            "tables" => "the tables of the publication were changed, or the outbox was taken out and put back",
            "schemas" => "the schemas of the publication were changed",
            "table" if after.is_none => "the table is gone",
            "table" if before.oid != after.oid => "the table was replaced by another one of its name",
            _ => "the table, or a partition of it, was made logged or unlogged",
        });
    }
    // A publication that was made anew names its tables anew, too.
    let anew = said.iter().any(|clause| clause.starts_with("the publication is gone") || clause.contains("made anew"));
    said.retain(|clause| !anew || !clause.contains("of the publication") && !clause.contains("by the publication"));
    if said.is_empty() && recorded.ends_with(" changed") {
        return "it was another for a while, and is now as it was".to_owned();
    }
    if said.is_empty() { "they were changed".to_owned() } else { said.join(", and ") }
}

/// `oid/version`, or `none`.
struct Parsed {
    oid: String,
    is_none: bool,
}

impl Parsed {
    fn of(text: &str) -> Parsed {
        let oid = text.split_once('/').map_or(text, |(oid, _)| oid);
        Parsed { oid: oid.to_owned(), is_none: text == "none" || text.is_empty() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_is_said_in_words() {
        let recorded = "publication=24800/4320 tables=24801/4320 schemas=none table=16526/p";
        for (now, words) in [
            (
                "publication=32992/4352 tables=32993/4352 schemas=none table=16526/p",
                "the publication was dropped and made anew",
            ),
            ("publication=none tables=none schemas=none table=16526/p", "the publication is gone"),
            ("publication=24800/4400 tables=24801/4320 schemas=none table=16526/p", "the publication was altered"),
            (
                "publication=24800/4320 tables=none schemas=none table=16526/p",
                "no table is named by the publication any more",
            ),
            (
                "publication=24800/4320 tables=24801/4320 schemas=none table=999/p",
                "the table was replaced by another one of its name",
            ),
            (
                "publication=24800/4320 tables=24801/4320 schemas=none table=16526/u",
                "the table, or a partition of it, was made logged or unlogged",
            ),
        ] {
            assert_eq!(difference(recorded, now), words);
        }
        let two = difference(recorded, "publication=24800/4320 tables=1/2 schemas=none table=none");
        assert!(two.contains("taken out and put back, and the table is gone"), "{two}");
        assert_eq!(difference("", ""), "they were changed");
        let undone = difference("table=16526/p changed", "table=16526/p");
        assert!(undone.contains("as it was"), "{undone}");
    }
}
