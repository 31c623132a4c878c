//! What the demo prints: steps with the seconds since its start, SQL, and one row for each message.

use std::cell::Cell;
use std::fmt::Write as _;
use std::io::{self, IsTerminal as _, Write as _};
use std::time::{Duration, Instant};

use crate::sink::reader::Arrival;

const PAYLOAD_WIDTH: usize = 40;

/// Standard output. Its lines are whole, whoever writes them.
pub struct Screen {
    started: Instant,
    styled: bool,
    /// After the last row of the table a step needs no heading of the table before the next row.
    heading_shown: Cell<bool>,
}

#[derive(Clone, Copy)]
enum Style {
    Bold,
    Dim,
    Yellow,
    Red,
    Green,
}

impl Screen {
    pub fn new() -> Screen {
        let plain = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        Screen {
            started: Instant::now(),
            styled: io::stdout().is_terminal() && !plain,
            heading_shown: Cell::new(false),
        }
    }

    /// Lines as they are.
    pub fn say(&self, text: &str) -> io::Result<()> {
        writeln!(io::stdout().lock(), "{text}")
    }

    pub fn title(&self, text: &str) -> io::Result<()> {
        self.say(&format!("\n{}", self.style(Style::Bold, text)))
    }

    /// Something has happened.
    pub fn step(&self, text: &str) -> io::Result<()> {
        self.say(&format!("{:>6.1} s  {text}", self.started.elapsed().as_secs_f64()))
    }

    /// Lines that must not be overlooked.
    pub fn warning(&self, text: &str) -> io::Result<()> {
        let lines: Vec<String> = text.lines().map(|line| self.style(Style::Yellow, &format!("  ! {line}"))).collect();
        self.say(&format!("\n{}\n", lines.join("\n")))
    }

    /// What was run, by a person's eye: SQL or a command line.
    pub fn code(&self, text: &str) -> io::Result<()> {
        let lines: Vec<String> = text.trim_end().lines().map(|line| format!("    {line}")).collect();
        self.say(&self.style(Style::Dim, &lines.join("\n")))
    }

    /// A message has arrived, `wait` after its commit.
    pub fn row(&self, arrival: &Arrival, wait: Option<Duration>, note: &str) -> io::Result<()> {
        if !self.heading_shown.replace(true) {
            let heading = table_row("time", "topic", "part", "key", "event", "payload", "commit to", "");
            self.say(&self.style(Style::Bold, heading.trim_end()))?;
            let heading = table_row("", "", "", "", "", "", "arrival", "");
            self.say(&self.style(Style::Bold, heading.trim_end()))?;
        }
        let time = format!("{:.2}", (arrival.at - self.started).as_secs_f64());
        let key = text(arrival.key.as_deref());
        let payload = shortened(&text(arrival.value.as_deref()), PAYLOAD_WIDTH);
        let event = arrival.header("eventType").unwrap_or("-");
        let wait = wait.map_or_else(|| "-".to_owned(), milliseconds);
        let row = table_row(&time, &arrival.topic, &arrival.partition.to_string(), &key, event, &payload, &wait, note);
        self.say(row.trim_end())
    }

    /// Something between the rows of the table.
    pub fn aside(&self, text: &str) -> io::Result<()> {
        self.say(&self.style(Style::Dim, &self.between(text)))
    }

    /// As [`Screen::aside`], for what must not be overlooked.
    pub fn loud_aside(&self, text: &str) -> io::Result<()> {
        self.say(&self.style(Style::Yellow, &self.between(text)))
    }

    fn between(&self, text: &str) -> String {
        format!("{:>7.2}  {text}", self.started.elapsed().as_secs_f64())
    }

    /// The last word.
    pub fn verdict(&self, good: bool, text: &str) -> io::Result<()> {
        self.say(&self.style(if good { Style::Green } else { Style::Red }, text))
    }

    fn style(&self, style: Style, text: &str) -> String {
        let code = match style {
            Style::Bold => 1,
            Style::Dim => 2,
            Style::Red => 31,
            Style::Green => 32,
            Style::Yellow => 33,
        };
        if self.styled { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
    }
}

/// `6 ms`, `6.3 s`.
pub fn milliseconds(duration: Duration) -> String {
    match duration.as_millis() {
        0 => "<1 ms".to_owned(),
        ms if ms < 1_000 => format!("{ms} ms"),
        _ => format!("{:.1} s", duration.as_secs_f64()),
    }
}

#[expect(clippy::too_many_arguments, reason = "one for each column")]
fn table_row(
    time: &str,
    topic: &str,
    partition: &str,
    key: &str,
    event: &str,
    payload: &str,
    wait: &str,
    note: &str,
) -> String {
    format!(
        "{time:>7}  {topic:<18}  {partition:>4}  {key:<5}  {event:<13}  {payload:<PAYLOAD_WIDTH$}  {wait:>9}  {note}"
    )
}

fn text(bytes: Option<&[u8]>) -> String {
    bytes.map_or_else(|| "-".to_owned(), |bytes| String::from_utf8_lossy(bytes).into_owned())
}

/// At most `width` characters of one line; nothing in it moves a terminal's cursor.
fn shortened(text: &str, width: usize) -> String {
    let mut shown = String::new();
    for (at, c) in text.chars().enumerate() {
        if at + 1 >= width && text.chars().nth(width).is_some() {
            let _ = write!(shown, "…");
            break;
        }
        shown.push(if c.is_control() { '.' } else { c });
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_payload_is_shortened_and_a_short_one_is_not() {
        assert_eq!(shortened("{\"a\": 1}", 8), "{\"a\": 1}");
        assert_eq!(shortened("{\"a\": 12}", 8), "{\"a\": 1…");
        assert_eq!(shortened("größer als das", 7), "größer…");
        assert_eq!(shortened("a\x1b[2Jb\n", 40), "a.[2Jb.");
        assert_eq!(shortened("", 4), "");
    }

    #[test]
    fn durations_are_short_to_read() {
        assert_eq!(milliseconds(Duration::from_micros(300)), "<1 ms");
        assert_eq!(milliseconds(Duration::from_micros(6_900)), "6 ms");
        assert_eq!(milliseconds(Duration::from_millis(6_340)), "6.3 s");
    }
}
