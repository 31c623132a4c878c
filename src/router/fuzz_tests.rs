//! Texts that users write: whatever they are, they are read or refused with a sentence, and nothing panics.

use std::collections::BTreeMap;
use std::sync::Arc;

use proptest::prelude::*;
use serde::de::IgnoredAny;

use super::intern::Names;
use super::template::Template;
use super::{Header, headers, topic};
use crate::outbox::Poison;
use crate::parking;
use crate::source::Row;

/// JSON, nearly JSON, and what is none.
fn nearly_json() -> impl Strategy<Value = String> {
    let scalar = prop_oneof![
        Just("null".to_owned()),
        Just("true".to_owned()),
        "-?[0-9]{1,25}(\\.[0-9]{1,10})?([eE][+-]?[0-9]{1,3})?",
        "\"([a-zA-Zäß \\\\/\"u0-9dD{}\\[\\]:,]|\\\\u[0-9a-fA-F]{4}|\\\\[nrtbf\"\\\\/]){0,20}\"",
    ];
    let value = scalar.prop_recursive(4, 24, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(|items| format!("[{}]", items.join(", "))),
            prop::collection::vec(("[a-zA-Z._ -]{0,12}", inner), 0..4).prop_map(|members| {
                let members = members.into_iter().map(|(name, value)| format!("\"{name}\":{value}"));
                format!("{{{}}}", members.collect::<Vec<_>>().join(","))
            }),
        ]
    });
    prop_oneof![
        4 => prop::collection::vec(("[a-zA-Z._ -]{0,12}", value.clone()), 0..5).prop_map(|members| {
            let members = members.into_iter().map(|(name, value)| format!("\"{name}\": {value}"));
            format!("{{{}}}", members.collect::<Vec<_>>().join(", "))
        }),
        1 => value,
        1 => ".{0,60}",
    ]
}

fn append(json: &str) -> Result<Vec<Header>, Poison> {
    let (mut names, mut written) = (Names::default(), Vec::new());
    let reserved: [Arc<str>; 2] = ["id".into(), "token".into()];
    headers::append(&json.to_owned().into(), "headers", &reserved, &mut names, &mut written).map(|()| written)
}

proptest! {
    /// What is taken is a JSON object to every other parser, too, with as many members.
    #[test]
    fn any_text_is_headers_or_refused(json in nearly_json(), cut in 0usize..80) {
        let whole = append(&json);
        // A number beyond every float, half a surrogate pair: inside a value they pass through as they stand.
        match (serde_json::from_str::<BTreeMap<String, IgnoredAny>>(&json), &whole) {
            (Ok(members), Ok(written)) => prop_assert!(written.len() >= members.len()),
            (Ok(_), Err(refused)) => prop_assert!(!refused.sentence.is_empty()),
            (Err(_), outcome) => prop_assert!(outcome.is_err() || json.contains("\\u"), "{outcome:?}"),
        }
        if let Some(beginning) = json.get(..cut) {
            let _ = append(beginning);
        }
        if let Ok(written) = whole {
            prop_assert_eq!(parking::headers_from_json(&parking::headers_to_json(&written)), Some(written));
        }
    }

    #[test]
    fn any_text_is_a_template_or_refused(text in "[a-zA-Z0-9._{}\\- é]{0,40}", other in ".{0,40}") {
        for text in [text, other] {
            let _ = topic::check(text.as_bytes());
            if let Ok(template) = Template::parse(&text) {
                prop_assert_eq!(template.to_string(), text);
            }
        }
    }

    #[test]
    fn any_text_is_a_kept_row_or_refused(json in nearly_json(), text in ".{0,80}") {
        for text in [json, text] {
            if let Some(row) = Row::from_json(&text) {
                prop_assert_eq!(Row::from_json(&row.to_json()).map(|again| again.to_json()), Some(row.to_json()));
            }
            let _ = parking::headers_from_json(&text);
        }
    }
}
