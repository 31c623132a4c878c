//! The form of the files: short, finished, opened by a paragraph, and free of what is true on one machine only.

use std::fs;

use crate::{File, code_lines, files, none, root, words};

const LINES_MAX: usize = 500;

/// Longer already, with what they may have: these numbers only shrink.
const LONGER: &[(&str, usize)] =
    &[("src/postgres/address.rs", 660), ("src/postgres/error.rs", 520), ("src/router/tests.rs", 610)];

#[test]
fn files_are_short() {
    let mut violations = Vec::new();
    for file in files(&["src", "tests", "benches", "scripts"], &[]) {
        let lines = file.text.lines().count();
        let ratchet = LONGER.iter().find(|(path, _)| *path == file.path);
        let limit = ratchet.map_or(LINES_MAX, |&(_, limit)| limit);
        if lines > limit {
            violations.push(format!("{} has {lines} lines, {limit} are allowed: split it", file.path));
        } else if ratchet.is_some() && lines <= LINES_MAX {
            violations.push(format!("{} is short enough now: take it off the list", file.path));
        }
    }
    none("a file has at most 500 lines:", violations);
}

#[test]
fn modules_open_with_a_paragraph() {
    let sources = files(&["src", "tests", "benches"], &[".rs"]).into_iter();
    // The tests of a module may stand in a file beside it, and are opened by the module.
    let silent = sources.filter(|file| !file.text.starts_with("//!") && !file.path.ends_with("tests.rs"));
    let silent = silent.map(|file| file.path);
    none("a module opens with what it does and what it must never do:", silent.collect());
}

#[test]
fn nothing_is_unfinished() {
    let macros = ["todo", "unimplemented", "dbg"];
    // Put together here, or this file would hold them.
    let notes = [["TO", "DO"].concat(), ["FIX", "ME"].concat(), ["XX", "X"].concat()];
    let mut violations = Vec::new();
    for file in files(&["src", "tests", "benches", "scripts", "sql", "docs", "examples", "deploy", "README.md"], &[]) {
        for (number, line) in file.text.lines().enumerate() {
            if words(line).any(|word| notes.iter().any(|note| note == word)) {
                violations.push(format!("{}:{}: {}", file.path, number + 1, line.trim()));
            }
        }
        if file.path.ends_with(".rs") {
            for (number, code) in code_lines(&file.text) {
                if macros.iter().any(|name| code.contains(&format!("{name}!("))) {
                    violations.push(format!("{}:{number}: {}", file.path, code.trim()));
                }
            }
        }
    }
    none("what is committed is finished:", violations);
}

/// A test waits for a state with a bound. Who polls for it may sleep between two looks: in one place of the kit, elsewhere
/// on a line that says so.
#[test]
fn tests_wait_for_a_state_never_for_a_time() {
    const POLLING: &[&str] = &["tests/end_to_end/kit/wait.rs"];
    const SAYS_SO: &str = "between two looks";
    let mut violations = Vec::new();
    for file in files(&["src", "tests"], &[".rs"]) {
        let all_test = file.path.starts_with("tests/") || file.path.contains("tests");
        let mut in_test = all_test;
        for ((number, code), line) in code_lines(&file.text).zip(file.text.lines()) {
            in_test |= code.contains("#[cfg(test)]");
            let sleeps = code.contains("sleep(") && !line.contains(SAYS_SO);
            if in_test && sleeps && !POLLING.contains(&file.path.as_str()) {
                violations.push(format!("{}:{number}: {}", file.path, code.trim()));
            }
        }
    }
    none("a test waits for a state, never for a time:", violations);
}

#[test]
fn nothing_is_true_on_one_machine_only() {
    // Put together here, or this file would hold them.
    let forbidden: Vec<String> = [
        ["/ro", "ot/"],
        ["/wo", "rk/"],
        ["/Use", "rs/"],
        ["repo.mav", "en."],
        ["repo1.mav", "en."],
        ["index.crat", "es.io"],
        ["static.crat", "es.io"],
    ]
    .map(|parts| parts.concat())
    .into();
    let mut violations = Vec::new();
    for file in files(&["."], &[]) {
        let path = file.path.trim_start_matches("./");
        // `.git` is a file in a linked working tree.
        if path == "Cargo.lock" || path == ".git" {
            continue;
        }
        for (number, line) in file.text.lines().enumerate() {
            if let Some(found) = forbidden.iter().find(|found| line.contains(found.as_str())) {
                violations.push(format!("{path}:{}: {found}", number + 1));
            }
        }
    }
    none("no path of one machine, no host of a package registry:", violations);
}

#[test]
fn the_top_level_is_complete() {
    let wanted = [
        "README.md",
        "CHANGELOG.md",
        "CONTRIBUTING.md",
        "LICENSE",
        "Makefile",
        "Dockerfile",
        "docker-compose.yml",
        "walpost.example.toml",
        ".ci/run",
        "docs/architecture.md",
        "docs/operations.md",
    ];
    let missing = wanted.iter().filter(|path| !root().join(path).is_file()).map(|path| (*path).to_owned());
    none("the top level holds:", missing.collect());
}

#[test]
fn the_changelog_begins_with_the_version() {
    let changelog = File::read("CHANGELOG.md").text;
    let heading = changelog.lines().find(|line| line.starts_with("## ")).unwrap_or_default();
    let version = env!("CARGO_PKG_VERSION");
    let named = heading.split(|character: char| !character.is_ascii_digit() && character != '.');
    assert!(named.into_iter().any(|part| part == version), "CHANGELOG.md begins with {heading:?}, not with {version}");
}

#[test]
fn scripts_may_be_run() {
    use std::os::unix::fs::PermissionsExt;
    for script in [".ci/run", "scripts/stack", "scripts/deps", "scripts/demo"] {
        let mode =
            fs::metadata(root().join(script)).unwrap_or_else(|error| panic!("{script}: {error}")).permissions().mode();
        assert_eq!(mode & 0o111, 0o111, "{script} is not executable");
        assert!(File::read(script).text.starts_with("#!/usr/bin/env bash\n"), "{script} has no interpreter");
    }
}
