//! Modules point one way: words, pure core, edges, loop, wiring. The two drivers are named only at their ends, and the two
//! ends do not know each other.

use crate::{File, code_lines, files, none, words};

/// The layer of a module, by the longest prefix of its path that is listed.
const LAYERS: &[(&str, usize)] = &[
    ("planted", 0),
    ("error_text", 0),
    ("lsn", 0),
    ("names", 0),
    ("config", 0),
    ("source", 1),
    ("outbox", 1),
    ("router", 1),
    ("ack", 1),
    ("parking", 1),
    ("source::connection", 2),
    ("source::stream", 2),
    ("source::auth", 2),
    ("source::table", 2),
    ("sink", 2),
    ("postgres", 2),
    ("telemetry", 2),
    ("relay", 3),
    ("cli", 4),
    ("commands", 4),
    ("main", 4),
    ("lib", 4),
];

const LAYER_NAMES: [&str; 5] = ["words", "pure core", "edges", "loop", "wiring"];

/// Crates that may be named under these paths alone.
const DRIVERS: &[(&str, &[&str])] = &[
    ("tokio_postgres", &["src/source/", "src/postgres/"]),
    ("postgres_protocol", &["src/source/", "src/postgres/"]),
    ("postgres_openssl", &["src/source/", "src/postgres/"]),
    ("tokio_openssl", &["src/source/", "src/postgres/"]),
    ("rdkafka", &["src/sink/"]),
    ("rdkafka_sys", &["src/sink/"]),
];

/// A module, and modules that it must never name although their layer would allow it.
const STRANGERS: &[(&str, &[&str])] = &[
    ("source", &["sink", "router", "outbox", "ack", "telemetry"]),
    ("postgres", &["sink", "ack", "telemetry"]),
    ("sink", &["source", "postgres", "outbox", "telemetry"]),
    ("telemetry", &["source", "postgres", "sink"]),
    ("outbox", &["router", "ack", "sink", "postgres"]),
    ("router", &["ack", "sink", "postgres"]),
    ("ack", &["source", "sink", "router", "outbox"]),
];

#[test]
fn modules_point_one_way() {
    let mut violations = Vec::new();
    for file in files(&["src"], &[".rs"]) {
        let module = module(&file.path);
        let Some(own) = layer(&module) else {
            violations.push(format!("{}: `{module}` has no layer in this test", file.path));
            continue;
        };
        for (number, target) in imports(&file) {
            match layer(&target) {
                Some(other) if other <= own => {}
                Some(other) => violations.push(format!(
                    "{}:{number}: {} must not use {} (`{target}`)",
                    file.path, LAYER_NAMES[own], LAYER_NAMES[other]
                )),
                None => violations.push(format!("{}:{number}: `{target}` has no layer in this test", file.path)),
            }
            let top = |path: &str| path.split("::").next().unwrap_or_default().to_owned();
            for (module_top, strangers) in STRANGERS {
                if top(&module) == *module_top && strangers.contains(&top(&target).as_str()) {
                    violations.push(format!("{}:{number}: {module_top} must not know `{target}`", file.path));
                }
            }
        }
    }
    none("modules point one way (docs/architecture.md):", violations);
}

#[test]
fn drivers_are_named_only_at_their_ends() {
    let mut violations = Vec::new();
    for file in files(&["src"], &[".rs"]) {
        for (number, code) in code_lines(&file.text) {
            for (driver, allowed) in DRIVERS {
                if words(&code).any(|word| word == *driver) && !allowed.iter().any(|place| file.path.starts_with(place))
                {
                    violations.push(format!("{}:{number}: {driver} belongs under {}", file.path, allowed.join(", ")));
                }
            }
        }
    }
    none("a driver is named only at its end:", violations);
}

/// `src/source/decoder.rs` and `src/source/decoder/tests.rs` are both `source::decoder...`.
fn module(path: &str) -> String {
    let path = path.trim_start_matches("src/").trim_end_matches(".rs").trim_end_matches("/mod");
    path.replace('/', "::")
}

fn layer(module: &str) -> Option<usize> {
    let fits =
        |prefix: &str| module == prefix || module.strip_prefix(prefix).is_some_and(|rest| rest.starts_with("::"));
    let best = LAYERS.iter().filter(|(prefix, _)| fits(prefix)).max_by_key(|(prefix, _)| prefix.len());
    best.map(|&(_, layer)| layer)
}

/// Every path into this crate that the file's code names, outside its tests: tests may look anywhere.
fn imports(file: &File) -> Vec<(usize, String)> {
    if file.path.contains("tests") {
        return Vec::new();
    }
    let lines = code_lines(&file.text).map(|(_, code)| code).take_while(|code| !code.contains("#[cfg(test)]"));
    let code = lines.collect::<Vec<_>>().join("\n");
    let mut found = Vec::new();
    for root in ["crate::", "walpost::"] {
        for (at, _) in code.match_indices(root) {
            // Not the end of a longer name, and not a macro's `$crate`.
            let before = code[..at].chars().next_back();
            if !before.is_some_and(|character| character.is_alphanumeric() || "_$:".contains(character)) {
                let number = 1 + code[..at].matches('\n').count();
                found.extend(targets(&code[at + root.len()..]).into_iter().map(|target| (number, target)));
            }
        }
    }
    found
}

/// `source::stream::Stream` is one target, `{lsn, config::{self, Config}}` are two. Only names of modules count, which are
/// the ones that begin with a small letter; what stands in braces below a module belongs to that module's layer or is
/// found by the layer of its own path.
fn targets(path: &str) -> Vec<String> {
    if let Some(list) = path.strip_prefix('{') {
        return items(list).into_iter().flat_map(|item| targets(item.trim())).collect();
    }
    let is_name = |character: &char| character.is_alphanumeric() || "_:".contains(*character);
    let name: String = path.chars().take_while(is_name).collect();
    let modules: Vec<&str> =
        name.split("::").take_while(|part| part.starts_with(|first: char| first.is_lowercase())).collect();
    let module = modules.join("::");
    if module.is_empty() {
        return Vec::new();
    }
    let mut all = vec![module.clone()];
    if let Some(list) = path[name.len()..].strip_prefix('{') {
        let below = items(list).into_iter().flat_map(|item| targets(item.trim()));
        all.extend(below.filter(|item| item != "self").map(|item| format!("{module}::{item}")));
    }
    all
}

/// What stands between the commas up to the closing brace, nested braces left whole.
fn items(list: &str) -> Vec<&str> {
    let (mut depth, mut start, mut items) = (0, 0, Vec::new());
    for (at, character) in list.char_indices() {
        match character {
            '{' => depth += 1,
            '}' if depth == 0 => {
                items.push(&list[start..at]);
                break;
            }
            '}' => depth -= 1,
            ',' if depth == 0 => {
                items.push(&list[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    items
}

#[test]
fn the_rule_sees_what_it_must_see() {
    let file = |text: &str| File { path: "src/outbox.rs".into(), text: text.into() };
    let seen = |text: &str| imports(&file(text)).into_iter().map(|(_, target)| target).collect::<Vec<_>>();
    assert_eq!(seen("use crate::source::stream::Stream;"), ["source::stream"]);
    assert_eq!(seen("use crate::{lsn::Lsn, sink};"), ["lsn", "sink"]);
    assert_eq!(
        seen("use crate::source::{\n    self, Row,\n    stream::{Stream, x},\n};"),
        ["source", "source::stream", "source::stream::x"]
    );
    assert_eq!(seen("let x = crate::postgres::slot::look();"), ["postgres::slot::look"]);
    assert_eq!(seen("// crate::sink\nlet x = \"crate::sink\";"), Vec::<String>::new());
    assert_eq!(layer("source::stream::tests"), Some(2));
    assert_eq!(layer("source::decoder"), Some(1));
    assert_eq!(layer("sources"), None);
    assert!(words("use rdkafka::x; librdkafka").any(|word| word == "rdkafka"));
}
