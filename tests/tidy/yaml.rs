//! As much of YAML as a compose file needs: nested maps and lists by indentation, plain and quoted scalars, flow lists of
//! scalars. Anything else is an error with its line, so that nothing is silently misread.

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Yaml {
    Text(String),
    List(Vec<Yaml>),
    Map(Vec<(String, Yaml)>),
}

impl Yaml {
    /// The value at a path of keys.
    pub fn at(&self, path: &[&str]) -> Option<&Yaml> {
        let Some((first, rest)) = path.split_first() else {
            return Some(self);
        };
        let Yaml::Map(entries) = self else { return None };
        entries.iter().find(|(key, _)| key == first)?.1.at(rest)
    }

    pub fn text(&self) -> Option<&str> {
        if let Yaml::Text(text) = self { Some(text) } else { None }
    }

    pub fn keys(&self) -> Vec<&str> {
        match self {
            Yaml::Map(entries) => entries.iter().map(|(key, _)| key.as_str()).collect(),
            Yaml::List(items) => items.iter().filter_map(Yaml::text).collect(),
            Yaml::Text(_) => Vec::new(),
        }
    }
}

struct Line<'a> {
    number: usize,
    indent: usize,
    text: &'a str,
}

pub fn parse(text: &str) -> Result<Yaml, String> {
    let mut lines = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let content = line.trim();
        if content.is_empty() || content.starts_with('#') {
            continue;
        }
        let indent = line.len() - line.trim_start_matches(' ').len();
        if line[indent..].starts_with('\t') {
            return Err(format!("line {}: a tab", number + 1));
        }
        lines.push(Line { number: number + 1, indent, text: content });
    }
    let mut rest = lines.as_slice();
    let indent = rest.first().map_or(0, |line| line.indent);
    let value = block(&mut rest, indent)?;
    match rest.first() {
        Some(line) => Err(format!("line {}: indented less than the first", line.number)),
        None => Ok(value),
    }
}

/// Reads the lines of one block, which all stand at `indent`.
fn block(lines: &mut &[Line<'_>], indent: usize) -> Result<Yaml, String> {
    let is_list = lines.first().is_some_and(|line| is_item(line.text));
    let (mut items, mut entries) = (Vec::new(), Vec::<(String, Yaml)>::new());
    while let Some((line, rest)) = lines.split_first() {
        if line.indent < indent {
            break;
        }
        let wrong = |what: &str| format!("line {}: {what}: {}", line.number, line.text);
        if line.indent > indent || is_item(line.text) != is_list {
            return Err(wrong("does not fit the lines before it"));
        }
        *lines = rest;
        if is_list {
            let item = line.text[1..].trim_start();
            if key_of(item).is_some() {
                return Err(wrong("a map inside a list is not understood"));
            }
            items.push(scalar(item).map_err(|what| wrong(&what))?);
            continue;
        }
        let (key, value) = key_of(line.text).ok_or_else(|| wrong("neither `key: value` nor `- item`"))?;
        if entries.iter().any(|(other, _)| other == key) {
            return Err(wrong("the key stands twice"));
        }
        let nested = lines.first().filter(|next| next.indent > indent).map(|next| next.indent);
        let value = match (value, nested) {
            ("", Some(deeper)) => block(lines, deeper)?,
            (_, Some(_)) => return Err(wrong("a value and a block")),
            _ => scalar(value).map_err(|what| wrong(&what))?,
        };
        entries.push((key.to_owned(), value));
    }
    Ok(if is_list { Yaml::List(items) } else { Yaml::Map(entries) })
}

fn is_item(text: &str) -> bool {
    text == "-" || text.starts_with("- ")
}

fn key_of(text: &str) -> Option<(&str, &str)> {
    if text.starts_with(['"', '\'', '[', '{']) {
        return None;
    }
    let (key, value) = text.split_once(": ").or_else(|| Some((text.strip_suffix(':')?, "")))?;
    let plain = key.chars().all(|character| character.is_alphanumeric() || "_-.".contains(character));
    plain.then(|| (key, value.trim()))
}

fn scalar(text: &str) -> Result<Yaml, String> {
    if let Some(inner) = text.strip_prefix('[') {
        let inner = inner.strip_suffix(']').ok_or("a list that does not end on its line")?;
        let items = split_outside_quotes(inner);
        return Ok(Yaml::List(items.iter().map(|item| scalar(item.trim())).collect::<Result<_, _>>()?));
    }
    for quote in ['"', '\''] {
        if let Some(inner) = text.strip_prefix(quote) {
            let inner = inner.strip_suffix(quote).ok_or("a quote that does not end")?;
            if inner.contains(quote) || inner.contains('\\') {
                return Err("escapes are not understood".into());
            }
            return Ok(Yaml::Text(inner.to_owned()));
        }
    }
    if text.starts_with(['{', '|', '>', '&', '*', '!', '%', '@', '`']) || text.contains(": ") {
        return Err("not a plain scalar".into());
    }
    Ok(Yaml::Text(text.split(" #").next().unwrap_or_default().trim_end().to_owned()))
}

fn split_outside_quotes(text: &str) -> Vec<&str> {
    let (mut quote, mut start, mut parts) = (None, 0, Vec::new());
    for (at, character) in text.char_indices() {
        match (quote, character) {
            (Some(open), _) if open == character => quote = None,
            (None, '"' | '\'') => quote = Some(character),
            (None, ',') => {
                parts.push(&text[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    if !text[start..].trim().is_empty() {
        parts.push(&text[start..]);
    }
    parts
}

#[test]
fn reads_what_compose_files_are_made_of() {
    let yaml = parse("a:\n  b: 1 # one\n  c: [x, \"y, z\"]\n  d:\n    - 'p'\n    - q\ne: \"f\"\n").expect("YAML");
    assert_eq!(yaml.at(&["a", "b"]).and_then(Yaml::text), Some("1"));
    assert_eq!(yaml.at(&["a", "c"]).map(Yaml::keys), Some(vec!["x", "y, z"]));
    assert_eq!(yaml.at(&["a", "d"]).map(Yaml::keys), Some(vec!["p", "q"]));
    assert_eq!(yaml.keys(), ["a", "e"]);
    for wrong in
        ["a: 1\n  b: 2", "a:\n\t- b", "a: 1\na: 2", "a: {b: c}", "just text", "a:\n  - b\n  c: d", "a: \"b", "- a: b"]
    {
        assert!(parse(wrong).is_err(), "{wrong:?}");
    }
}
