//! An error with its causes as one line. The chain is printed once, where the error is handled; no error repeats its
//! cause in its own text.

use std::error::Error;

/// Adds [`ErrorText::text`] to every error.
pub trait ErrorText {
    /// The error and its causes, each after a colon.
    fn text(&self) -> String;
}

impl<E: Error> ErrorText for E {
    fn text(&self) -> String {
        let mut text = self.to_string();
        let mut cause = self.source();
        while let Some(error) = cause {
            let more = error.to_string();
            // Some libraries print their cause as well.
            if !text.ends_with(&more) {
                text.push_str(": ");
                text.push_str(&more);
            }
            cause = error.source();
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("outer")]
    struct Outer(#[source] std::io::Error);

    #[test]
    fn causes_follow_after_colons_and_are_said_once() {
        assert_eq!(Outer(std::io::Error::other("inner")).text(), "outer: inner");
        assert_eq!(std::io::Error::other("inner").text(), "inner");
    }
}
