//! libpq's password file: lines of `host:port:database:user:password`, where `*` fits everything and `\` escapes a
//! colon or a backslash. Read anew at each connect.

use std::path::Path;

use crate::config::Secret;

/// The password of the first line that fits; None also where there is no file, or one that others could read.
pub(crate) fn look_up(path: &Path, host: &str, port: u16, database: &str, user: &str) -> Option<Secret> {
    let metadata = std::fs::metadata(path).ok()?;
    if !metadata.is_file() {
        tracing::warn!(path = %path.display(), "the Postgres password file is not a plain file and is not used");
        return None;
    }
    #[cfg(unix)]
    if std::os::unix::fs::MetadataExt::mode(&metadata) & 0o077 != 0 {
        tracing::warn!(
            path = %path.display(),
            "the Postgres password file can be read by others and is not used; run chmod 600 on it"
        );
        return None;
    }
    match std::fs::read(path) {
        Ok(bytes) => find(&String::from_utf8_lossy(&bytes), [host, &port.to_string(), database, user]),
        Err(error) => {
            tracing::warn!(path = %path.display(), %error, "the Postgres password file cannot be read");
            None
        }
    }
}

fn find(text: &str, wanted: [&str; 4]) -> Option<Secret> {
    text.lines().filter(|line| !line.starts_with('#')).find_map(|line| {
        let mut rest = line.strip_suffix('\r').unwrap_or(line);
        for wanted in wanted {
            let (field, after) = field(rest)?;
            if field != "*" && unescaped(field) != wanted {
                return None;
            }
            rest = after;
        }
        // The password ends at the line's end; a colon in it needs no escape but may have one.
        Some(Secret::new(unescaped(rest))).filter(|password| !password.expose().is_empty())
    })
}

/// Splits at the first colon that is not escaped.
fn field(line: &str) -> Option<(&str, &str)> {
    let mut escaped = false;
    let at = line.char_indices().find_map(|(at, c)| {
        let ends = c == ':' && !escaped;
        escaped = c == '\\' && !escaped;
        ends.then_some(at)
    })?;
    Some((line.get(..at)?, line.get(at + 1..)?))
}

fn unescaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        match c {
            '\\' => out.extend(chars.next()),
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(text: &str, wanted: [&str; 4]) -> Option<String> {
        find(text, wanted).map(|password| password.expose().to_owned())
    }

    #[test]
    fn the_first_line_that_fits_wins() {
        let text = "# comment\nother:5432:*:*:no\ndb:5432:shop:relay:first\n*:*:*:*:last\n";
        assert_eq!(found(text, ["db", "5432", "shop", "relay"]).as_deref(), Some("first"));
        assert_eq!(found(text, ["db", "5433", "shop", "relay"]).as_deref(), Some("last"));
        assert_eq!(found("db:5432:shop:relay:x", ["db", "5432", "shop", "relay2"]), None);
    }

    #[test]
    fn escapes_and_odd_lines_are_read_as_libpq_does() {
        assert_eq!(found(r"a\:b:1:d\\b:u:p\:w:d\\x", ["a:b", "1", r"d\b", "u"]).as_deref(), Some(r"p:w:d\x"));
        assert_eq!(found("h:1:d:u:pä ß \r\n", ["h", "1", "d", "u"]).as_deref(), Some("pä ß "));
        for odd in ["", ":", "h:1:d:u", "h:1:d:u:", r"h:1:d:u\:x", "\\"] {
            assert_eq!(found(odd, ["h", "1", "d", "u"]), None, "{odd:?}");
        }
    }

    #[cfg(unix)]
    #[test]
    fn a_file_that_others_can_read_is_not_used() {
        use std::os::unix::fs::PermissionsExt;
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "*:*:*:*:secret").unwrap();
        for (mode, used) in [(0o600, true), (0o640, false), (0o604, false), (0o400, true)] {
            std::fs::set_permissions(file.path(), std::fs::Permissions::from_mode(mode)).unwrap();
            assert_eq!(look_up(file.path(), "h", 1, "d", "u").is_some(), used, "{mode:o}");
        }
        assert!(look_up(Path::new("/nonexistent/pgpass"), "h", 1, "d", "u").is_none());
    }
}
