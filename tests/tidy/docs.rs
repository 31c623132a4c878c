//! What the documents tell people to type exists: make targets, scripts, and every `walpost` command line, which the binary
//! itself parses. SQL in the documents is run on a real server by the end-to-end tests.

use std::collections::BTreeSet;
use std::process::Command;

use crate::{File, files, none, root};

/// Programs that a shell block may begin a command with, beside walpost, make and the repository's own scripts.
const KNOWN: &[&str] = &[
    "apt-get",
    "cargo",
    "cd",
    "cp",
    "createdb",
    "curl",
    "docker",
    "echo",
    "eval",
    "export",
    "git",
    "helm",
    "install",
    "java",
    "journalctl",
    "jq",
    "kafka-console-consumer.sh",
    "kafka-topics.sh",
    "kcat",
    "kubectl",
    "ls",
    "mkdir",
    "psql",
    "pip",
    "python3",
    "sudo",
    "systemctl",
    "tail",
    "watch",
];

#[test]
fn commands_in_the_documents_exist() {
    let targets = make_targets();
    let mut violations = Vec::new();
    for file in documents() {
        for (number, line) in shell_lines(&file.text) {
            for command in commands(&line) {
                if let Err(problem) = check(&command, &targets) {
                    violations.push(format!("{}:{number}: {problem}: {line}", file.path));
                }
            }
        }
    }
    none("a command in a document can be typed as it stands:", violations);
}

fn documents() -> Vec<File> {
    files(&["README.md", "CONTRIBUTING.md", "docs", "deploy", "examples"], &[".md"])
}

fn make_targets() -> BTreeSet<String> {
    let makefile = File::read("Makefile").text;
    let target = |line: &str| {
        let (name, _) = line.split_once(':')?;
        let plain = name.chars().all(|character| character.is_ascii_lowercase() || character == '-');
        (plain && !name.is_empty()).then(|| name.to_owned())
    };
    makefile.lines().filter_map(target).collect()
}

fn check(command: &[String], targets: &BTreeSet<String>) -> Result<(), String> {
    let Some((program, arguments)) = command.split_first() else {
        return Ok(());
    };
    match program.rsplit('/').next().unwrap_or_default() {
        "walpost" => parses(arguments),
        "make" => {
            let goals = arguments.iter().filter(|argument| !argument.starts_with('-') && !argument.contains('='));
            let unknown: Vec<&String> = goals.filter(|goal| !targets.contains(*goal)).collect();
            if unknown.is_empty() { Ok(()) } else { Err(format!("no such target: {unknown:?}")) }
        }
        _ if program.starts_with("scripts/") || program.starts_with("./") || program.starts_with(".ci/") => {
            if root().join(program).is_file() { Ok(()) } else { Err("no such file".into()) }
        }
        name if KNOWN.contains(&name) => Ok(()),
        name => Err(format!("{name} is not on the list of known programs")),
    }
}

/// The binary parses from left to right: it refuses what it does not know before it comes to `--help`.
fn parses(arguments: &[String]) -> Result<(), String> {
    let output = Command::new(env!("CARGO_BIN_EXE_walpost"))
        .args(arguments)
        .arg("--help")
        .output()
        .map_err(|error| error.to_string())?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr).lines().next().unwrap_or_default().to_owned();
    Err(said)
}

/// Lines of the blocks that are marked `sh`, continued ones joined.
fn shell_lines(text: &str) -> Vec<(usize, String)> {
    let (mut lines, mut in_block, mut here) = (Vec::new(), false, None::<String>);
    let mut joined: Option<(usize, String)> = None;
    for (number, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.starts_with("```") {
            in_block = line == "```sh";
            continue;
        }
        if !in_block {
            continue;
        }
        // What follows `<<EOF` is data.
        if let Some(end) = &here {
            if line == end {
                here = None;
            }
            continue;
        }
        if let Some((_, word)) = line.split_once("<<") {
            here = Some(word.split_whitespace().next().unwrap_or_default().trim_matches(['-', '\'', '"']).to_owned());
        }
        let (start, before) = joined.take().unwrap_or((number + 1, String::new()));
        let whole = before + line;
        match whole.strip_suffix('\\') {
            Some(continued) => joined = Some((start, continued.to_owned())),
            None => lines.push((start, whole)),
        }
    }
    lines
}

/// The commands of a line: split at pipes and the like, without variables before them, redirections and comments.
fn commands(line: &str) -> Vec<Vec<String>> {
    let mut commands = vec![Vec::new()];
    let mut skip_next = false;
    for word in shell_words(line) {
        let command: &mut Vec<String> = commands.last_mut().expect("there is one");
        let is_assignment = word.split_once('=').is_some_and(|(name, _)| {
            !name.is_empty()
                && name.chars().all(|character| character.is_ascii_uppercase() || "_0123456789".contains(character))
        });
        match word.as_str() {
            _ if skip_next => skip_next = false,
            "|" | "&&" | "||" | ";" | "&" => commands.push(Vec::new()),
            ">" | ">>" | "<" | "2>" | "<<" => skip_next = true,
            _ if word.starts_with("<<") || word.starts_with("2>") => {}
            "sudo" | "exec" | "$" => {}
            _ if is_assignment && command.is_empty() => {}
            _ => command.push(word),
        }
    }
    commands.retain(|command| !command.is_empty());
    commands
}

fn shell_words(line: &str) -> Vec<String> {
    let (mut words, mut word, mut quote) = (Vec::new(), None::<String>, None::<char>);
    for character in line.chars() {
        match (quote, character) {
            (Some(open), _) if open == character => quote = None,
            (Some(_), _) => word.get_or_insert_default().push(character),
            (None, '\'' | '"') => {
                quote = Some(character);
                word.get_or_insert_default();
            }
            (None, '#') if word.is_none() => break,
            (None, ' ' | '\t') => words.extend(word.take()),
            (None, ';') => {
                words.extend(word.take());
                words.push(";".into());
            }
            (None, _) => word.get_or_insert_default().push(character),
        }
    }
    words.extend(word);
    words
}

#[test]
fn the_rule_sees_what_it_must_see() {
    let text = "```sh\n# a comment\nA=1 walpost run \\\n  --setup | tail -n 1; make test # and so on\ncat <<'EOF'\nmake nothing\nEOF\n```\n";
    let lines = shell_lines(text);
    assert_eq!(lines.len(), 3);
    assert_eq!(
        commands(&lines[1].1),
        [vec!["walpost", "run", "--setup"], vec!["tail", "-n", "1"], vec!["make", "test"]]
    );
    assert_eq!(shell_words("a 'b c' \"d\"e # f"), ["a", "b c", "de"]);
    let targets = make_targets();
    let checked = |words: &[&str]| check(&words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>(), &targets);
    assert_eq!(checked(&["make", "test"]), Ok(()));
    assert!(checked(&["make", "tests"]).is_err());
    assert_eq!(checked(&["walpost", "run", "--setup"]), Ok(()));
    assert!(checked(&["walpost", "run", "--set-up"]).is_err());
    assert!(checked(&["walpost", "runs"]).is_err());
    assert!(checked(&["scripts/stacks"]).is_err());
}
