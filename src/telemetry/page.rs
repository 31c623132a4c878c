//! The page for people at `/`: one self-contained document that renews itself. What it shows may come from a server's
//! error text, so everything is escaped.

use super::describe::facts;
use super::health::Status;

/// Renews the page in place; when the relay does not answer, says so instead of showing old numbers as new. Without
/// scripts, the `noscript` element reloads the whole page.
const SCRIPT: &str = r#"
setInterval(async () => {
  const stale = document.getElementById("stale");
  try {
    const answer = await fetch(location.href, { cache: "no-store", signal: AbortSignal.timeout(1900) });
    const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
    document.querySelector("main").replaceWith(fresh.querySelector("main"));
    document.title = fresh.title;
    stale.hidden = true;
  } catch {
    stale.hidden = false;
  }
}, 2000);
"#;

const STYLE: &str = r#"
:root { color-scheme: light dark; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 46rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.3rem; }
h1 b { padding: .15rem .6rem; border-radius: .4rem; color: #fff; background: #b3261e; }
h1 b.ready { background: #1a7f37; }
.remedy { border-left: .25rem solid #b3261e; padding-left: .75rem; }
table { border-collapse: collapse; width: 100%; }
th, td { text-align: left; vertical-align: top; padding: .35rem .5rem .35rem 0; border-top: 1px solid #8884; }
th { font-weight: 600; white-space: nowrap; width: 8rem; }
td { overflow-wrap: anywhere; }
#stale { color: #b3261e; font-weight: 600; }
"#;

/// What the document may do: its own script and style, and asking this server.
pub const POLICY: &str = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; connect-src 'self'; \
                          frame-ancestors 'none'";

/// The whole document.
pub fn render(status: &Status) -> String {
    let state = status.state.as_str();
    let name = escaped(status.slot.name.as_deref().unwrap_or("no slot yet"));
    let ready = if status.state.is_ready() { "ready" } else { "not-ready" };
    let reason = escaped(status.reason());
    let remedy = match &status.remedy {
        Some(remedy) => format!("<p class=\"remedy\">{}</p>\n", escaped(remedy)),
        None => String::new(),
    };
    let rows: String = facts(status)
        .iter()
        .map(|(label, value)| format!("<tr><th>{}</th><td>{}</td></tr>\n", escaped(label), escaped(value)))
        .collect();
    format!(
        "<!DOCTYPE html>\n\
         <html lang=\"en\">\n\
         <head>\n\
         <meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <title>{state} · walpost ({name})</title>\n\
         <noscript><meta http-equiv=\"refresh\" content=\"2\"></noscript>\n\
         <style>{STYLE}</style>\n\
         </head>\n\
         <body>\n\
         <p id=\"stale\" hidden>The relay does not answer; this is what it said last.</p>\n\
         <main>\n\
         <h1>walpost <b class=\"{ready}\">{state}</b></h1>\n\
         <p>{reason}</p>\n\
         {remedy}\
         <table>\n{rows}</table>\n\
         </main>\n\
         <p><a href=\"metrics\">metrics</a> · <a href=\"status\">status as JSON</a> · \
         <a href=\"readyz\">readyz</a> · <a href=\"livez\">livez</a></p>\n\
         <script>{SCRIPT}</script>\n\
         </body>\n\
         </html>\n"
    )
}

fn escaped(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => safe.push_str("&amp;"),
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '"' => safe.push_str("&quot;"),
            '\'' => safe.push_str("&#39;"),
            other => safe.push(other),
        }
    }
    safe
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::telemetry::{EndStatus, State};

    #[test]
    fn shows_state_reason_remedy_and_numbers() {
        let mut status = Status::of(State::Stalled);
        status.reason = Some("no broker answers".into());
        status.remedy = Some("start a broker".into());
        status.slot.name = Some("orders".into());
        status.lag_bytes = Some(3 << 20);
        let page = render(&status);
        for part in ["not-ready", "stalled", "no broker answers", "start a broker", "orders", "3.0 MiB"] {
            assert!(page.contains(part), "{part} in {page}");
        }
    }

    #[test]
    fn loads_nothing_from_elsewhere() {
        let page = render(&Status::of(State::Streaming));
        assert!(page.contains("class=\"ready\""));
        for outside in ["http://", "https://", "src=", "@import", "url("] {
            assert!(!page.contains(outside), "{outside}");
        }
    }

    #[test]
    fn an_error_text_is_shown_and_not_run() {
        let mut status = Status::of(State::Starting);
        status.reason = Some("<script>alert('1')</script>".into());
        status.kafka = EndStatus::failed("<img src=x onerror=\"y\"> & more");
        let page = render(&status);
        assert!(!page.contains("<script>alert") && !page.contains("<img"), "{page}");
        assert!(page.contains("&lt;img src=x onerror=&quot;y&quot;&gt; &amp; more"));
    }
}
