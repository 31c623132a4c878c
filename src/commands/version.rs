//! `walpost version`: which walpost this is, for people and for scripts.

use std::io::{self, Write};

use crate::cli::VersionArgs;

/// Prints the version; `--json` as an object to which members may be added.
pub fn run(args: &VersionArgs, out: &mut dyn Write) -> io::Result<()> {
    let (name, version) = (env!("CARGO_PKG_NAME"), env!("CARGO_PKG_VERSION"));
    if args.json {
        let platform = format!("{}-{}", std::env::consts::ARCH, std::env::consts::OS);
        return writeln!(out, "{}", serde_json::json!({ "name": name, "version": version, "platform": platform }));
    }
    writeln!(out, "{name} {version}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn says_the_version_of_the_package_in_both_forms() {
        let printed = |json| {
            let mut out = Vec::new();
            run(&VersionArgs { json }, &mut out).unwrap();
            String::from_utf8(out).unwrap()
        };
        assert_eq!(printed(false), format!("walpost {}\n", env!("CARGO_PKG_VERSION")));
        let value: serde_json::Value = serde_json::from_str(&printed(true)).unwrap();
        assert_eq!(value["version"], env!("CARGO_PKG_VERSION"));
    }
}
