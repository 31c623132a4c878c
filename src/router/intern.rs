//! One shared copy of each topic and header name, so that a record costs no allocation for them.

use std::collections::HashSet;
use std::sync::Arc;

/// Names kept at most. A table that makes up a name for each row then costs an allocation each, never memory.
const KEPT: usize = 1024;

/// A longer name is not kept: it is hardly one of few.
const KEPT_BYTES: usize = 256;

/// Names that came before.
#[derive(Debug, Default)]
pub struct Names {
    kept: HashSet<Arc<str>>,
    /// The last one: rows of one kind come in runs.
    last: Option<Arc<str>>,
}

impl Names {
    /// The shared copy, if this name came before.
    pub fn known(&mut self, name: &str) -> Option<Arc<str>> {
        match &self.last {
            Some(last) if **last == *name => Some(Arc::clone(last)),
            _ => {
                let known = Arc::clone(self.kept.get(name)?);
                self.last = Some(Arc::clone(&known));
                Some(known)
            }
        }
    }

    /// The shared copy, made now if it is the first.
    pub fn intern(&mut self, name: &str) -> Arc<str> {
        if let Some(known) = self.known(name) {
            return known;
        }
        let name: Arc<str> = name.into();
        if name.len() <= KEPT_BYTES {
            if self.kept.len() >= KEPT {
                self.kept.clear();
            }
            self.kept.insert(Arc::clone(&name));
        }
        name
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_came_before_is_not_copied_again() {
        let mut names = Names::default();
        let first = names.intern("orders");
        names.intern("payments");
        assert!(Arc::ptr_eq(&first, &names.intern("orders")));
        assert!(names.known("never").is_none());
    }

    #[test]
    fn the_kept_names_are_bounded() {
        let mut names = Names::default();
        for number in 0..10 * KEPT {
            assert_eq!(&*names.intern(&number.to_string()), number.to_string());
            assert!(names.kept.len() <= KEPT);
        }
        let long = "x".repeat(KEPT_BYTES + 1);
        assert_eq!(*names.intern(&long), *long);
        assert!(names.known(&long).is_none());
    }
}
