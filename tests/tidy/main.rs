//! The house rules that a machine can check. A rule worth having is here; what is not here is taste.
//!
//! `imports`: modules point one way.  `sources`: form of the files.  `docs`: what the documents tell people to type.
//! `cases`: the tests that the catalogue of field cases names.
//! `compose`: docker-compose.yml, read with `yaml`, a reader for the part of that language that the file uses.

mod cases;
mod compose;
mod docs;
mod imports;
mod sources;
mod yaml;

use std::fs;
use std::path::{Path, PathBuf};

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// A file of the repository: its path from the root, with slashes, and its text.
struct File {
    path: String,
    text: String,
}

impl File {
    fn read(path: &str) -> File {
        let text = fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"));
        File { path: path.to_owned(), text }
    }
}

/// Every text file under these folders or at these paths that ends like this, in a fixed order.
fn files(places: &[&str], ends: &[&str]) -> Vec<File> {
    let mut found = Vec::new();
    for place in places {
        collect(&root().join(place), &mut found);
    }
    let relative =
        |path: PathBuf| path.strip_prefix(root()).expect("inside").to_str().expect("a plain name").to_owned();
    let mut paths: Vec<String> = found.into_iter().map(relative).collect();
    paths.retain(|path| ends.is_empty() || ends.iter().any(|end| path.ends_with(end)));
    paths.sort();
    let text = |path: &String| fs::read_to_string(root().join(path)).ok();
    paths.into_iter().filter_map(|path| text(&path).map(|text| File { path, text })).collect()
}

fn collect(path: &Path, found: &mut Vec<PathBuf>) {
    let name = path.file_name().unwrap_or_default();
    if path.is_file() {
        found.push(path.to_owned());
    } else if path.is_dir() && name != ".git" && name != "target" {
        for entry in fs::read_dir(path).expect("a readable folder").flatten() {
            collect(&entry.path(), found);
        }
    }
}

/// Fails with one line for each violation.
#[track_caller]
fn none(rule: &str, violations: Vec<String>) {
    assert!(violations.is_empty(), "{rule}\n  {}\n", violations.join("\n  "));
}

/// The words that a Rust source uses as code: without comments and without texts, each with the number of its line.
fn code_lines(text: &str) -> impl Iterator<Item = (usize, String)> {
    text.lines().enumerate().map(|(number, line)| (number + 1, without_texts(line)))
}

/// A line without its string literals and its comment. Literals over several lines are not understood; they are rare
/// enough, and what they hold looks like no import.
fn without_texts(line: &str) -> String {
    let (mut code, mut in_text, mut escaped) = (String::new(), false, false);
    let mut characters = line.chars().peekable();
    while let Some(character) = characters.next() {
        match character {
            _ if escaped => escaped = false,
            '\\' if in_text => escaped = true,
            '\'' if !in_text && characters.peek() == Some(&'"') => {}
            '"' => in_text = !in_text,
            '/' if !in_text && characters.peek() == Some(&'/') => break,
            _ if in_text => {}
            _ => code.push(character),
        }
    }
    code
}

fn words(code: &str) -> impl Iterator<Item = &str> {
    code.split(|character: char| !character.is_alphanumeric() && character != '_').filter(|word| !word.is_empty())
}
