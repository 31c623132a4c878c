//! `route.topic`: text in which `{name}` stands for a column's value. `{{` and `}}` are read as the characters
//! themselves, and refused at once, as every character that no topic's name can have.

use std::fmt;

use super::topic;

/// A template that was read. Which columns exist is only known when a relation is bound.
#[derive(Clone, Debug)]
pub struct Template {
    text: String,
    parts: Vec<Part>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Part {
    Literal(String),
    /// A field's or a column's name.
    Column(String),
}

/// The template is not well written. `position` counts characters from 1.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the topic template {template:?} is wrong at character {position}: {problem}. Mend route.topic (--topic, \
     WALPOST_TOPIC)"
)]
pub struct TemplateError {
    pub template: String,
    pub position: usize,
    pub problem: TemplateProblem,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TemplateProblem {
    #[error("it is empty")]
    Empty,
    #[error("this brace is never closed")]
    Unclosed,
    #[error("a closing brace without an opening one")]
    Unopened,
    #[error("a brace within a column's name")]
    Nested,
    #[error("no column is named between the braces")]
    NoName,
    #[error("{0:?} may not stand in a topic's name")]
    IllegalCharacter(char),
    #[error("{0}")]
    IllegalName(#[source] topic::BadTopicName),
}

impl Template {
    pub fn parse(text: &str) -> Result<Template, TemplateError> {
        let wrong = |position, problem| TemplateError { template: text.to_owned(), position, problem };
        let mut parts = Vec::new();
        let mut literal = String::new();
        let mut chars = text.chars().zip(1..).peekable();
        while let Some((char, position)) = chars.next() {
            match char {
                // A doubled brace is the character itself, which no topic's name can have.
                '{' | '}' if chars.next_if(|(next, _)| *next == char).is_some() => {
                    return Err(wrong(position, TemplateProblem::IllegalCharacter(char)));
                }
                '}' => return Err(wrong(position, TemplateProblem::Unopened)),
                '{' => {
                    if !literal.is_empty() {
                        parts.push(Part::Literal(std::mem::take(&mut literal)));
                    }
                    let mut name = String::new();
                    loop {
                        match chars.next() {
                            None => return Err(wrong(position, TemplateProblem::Unclosed)),
                            Some(('}', _)) => break,
                            Some(('{', inner)) => return Err(wrong(inner, TemplateProblem::Nested)),
                            Some((char, _)) => name.push(char),
                        }
                    }
                    if name.is_empty() {
                        return Err(wrong(position, TemplateProblem::NoName));
                    }
                    parts.push(Part::Column(name));
                }
                char if char.is_ascii() && topic::first_bad_byte(&[char as u8]).is_none() => literal.push(char),
                char => return Err(wrong(position, TemplateProblem::IllegalCharacter(char))),
            }
        }
        if !literal.is_empty() {
            parts.push(Part::Literal(literal));
        }
        match parts.as_slice() {
            [] => return Err(wrong(1, TemplateProblem::Empty)),
            // The same for all rows: then it can be told at once that it is no name.
            [Part::Literal(name)] => {
                topic::check(name.as_bytes()).map_err(|why| wrong(1, TemplateProblem::IllegalName(why)))?;
            }
            [Part::Literal(beginning), ..] if beginning.starts_with("__") => {
                return Err(wrong(1, TemplateProblem::IllegalName(topic::BadTopicName::Internal)));
            }
            _ => {}
        }
        Ok(Template { text: text.to_owned(), parts })
    }

    pub fn parts(&self) -> &[Part] {
        &self.parts
    }
}

impl fmt::Display for Template {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}
