//! The catalogue of field cases stays true: every test that `docs/field-cases.md` names exists, is a test, and every case is
//! either shown by one or says why not.

use std::collections::BTreeSet;

use crate::{File, none};

const CATALOGUE: &str = "docs/field-cases.md";
/// How a cell begins that names no test.
const NO_TEST: &str = "none:";

#[test]
fn every_case_is_shown_by_a_test_that_exists_or_says_why_not() {
    let text = File::read(CATALOGUE).text;
    let mut violations = Vec::new();
    let mut seen = BTreeSet::new();
    for (number, case, shown_by) in cases(&text) {
        if !seen.insert(case) {
            violations.push(format!("{CATALOGUE}:{number}: {case} is there twice"));
        }
        let tests = named_tests(shown_by);
        if tests.is_empty() && !shown_by.trim().starts_with(NO_TEST) {
            violations.push(format!("{CATALOGUE}:{number}: {case} names no test and no reason"));
        }
    }
    for (number, line) in text.lines().enumerate() {
        for (path, name) in named_tests(line) {
            let found = std::fs::read_to_string(crate::root().join(path)).is_ok_and(|source| holds_test(&source, name));
            if !found {
                violations.push(format!("{CATALOGUE}:{}: there is no test {name} in {path}", number + 1));
            }
        }
    }
    assert!(seen.len() > 100, "only {} cases were read", seen.len());
    none("the catalogue names tests that exist:", violations);
}

/// Line number, case and last cell of each row.
fn cases(text: &str) -> impl Iterator<Item = (usize, &str, &str)> {
    text.lines().enumerate().filter_map(|(number, line)| {
        let mut cells = line.strip_prefix('|')?.strip_suffix('|')?.split('|');
        let (case, shown_by) = (cells.next()?.trim(), cells.next_back()?);
        let (letter, digits) = case.split_at_checked(1)?;
        let is_case = letter.chars().all(|c| c.is_ascii_uppercase()) && digits.parse::<u8>().is_ok();
        is_case.then_some((number + 1, case, shown_by))
    })
}

/// What stands between backticks as `path.rs::name`.
fn named_tests(text: &str) -> Vec<(&str, &str)> {
    let quoted = text.split('`').skip(1).step_by(2);
    quoted.filter_map(|word| word.split_once("::")).filter(|(path, _)| path.ends_with(".rs")).collect()
}

/// A function of this name whose attributes make it a test.
fn holds_test(source: &str, name: &str) -> bool {
    let lines: Vec<&str> = source.lines().map(str::trim_start).collect();
    let (plain, asynchronous) = (format!("fn {name}("), format!("async fn {name}("));
    lines.iter().enumerate().any(|(at, line)| {
        let mut before = lines[..at].iter().rev().take_while(|line| line.starts_with("#[") || line.starts_with("//"));
        (line.starts_with(&plain) || line.starts_with(&asynchronous))
            && before.any(|line| line.starts_with("#[test]") || line.starts_with("#[tokio::test"))
    })
}

#[test]
fn the_rule_sees_what_it_must_see() {
    let table = "| case | who |\n| --- | --- |\n| A1 | x | `src/a.rs::b`, `src/c.rs::d` |\n| K12 | y | none: no |\n";
    let read: Vec<_> = cases(table).map(|(number, case, cell)| (number, case, named_tests(cell))).collect();
    assert_eq!(read, [(3, "A1", vec![("src/a.rs", "b"), ("src/c.rs", "d")]), (4, "K12", vec![])]);
    let source = "#[test]\nfn one() {}\n#[tokio::test]\n// why\nasync fn two() {}\nfn three() {}\n    #[test]\n    fn four(x: u8) {}\n";
    assert!(["one", "two", "four"].iter().all(|name| holds_test(source, name)));
    assert!(["three", "on", "five"].iter().all(|name| !holds_test(source, name)));
}
