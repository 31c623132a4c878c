//! Waiting, always for a state and always with a bound. The only file in the tests that sleeps.

use std::thread;
use std::time::{Duration, Instant};

/// Between two looks. Short against every bound, long against what a look costs.
const POLL: Duration = Duration::from_millis(20);

/// Waits until `condition` holds. Panics with `what` when it does not within `bound`.
#[track_caller]
pub fn wait_for(bound: Duration, what: &str, mut condition: impl FnMut() -> bool) {
    wait_some(bound, what, || condition().then_some(()));
}

/// Waits until `look` sees something, and returns it.
#[track_caller]
pub fn wait_some<T>(bound: Duration, what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + bound;
    loop {
        if let Some(seen) = look() {
            return seen;
        }
        assert!(Instant::now() < deadline, "waited {bound:?} in vain for {what}");
        thread::sleep(POLL);
    }
}

/// Keeps looking for `duration` that `invariant` holds: for outages that must last, and for things that must not happen.
#[track_caller]
pub fn hold(duration: Duration, what: &str, mut invariant: impl FnMut() -> bool) {
    let end = Instant::now() + duration;
    while Instant::now() < end {
        assert!(invariant(), "no longer true: {what}");
        thread::sleep(POLL * 5);
    }
}

/// Until `moment`: the beat of a load generator, never a guess at how long something takes.
pub fn pace(moment: Instant) {
    thread::sleep(moment.saturating_duration_since(Instant::now()));
}

/// `seconds(5)` reads better in a test than the long form.
pub const fn seconds(count: u64) -> Duration {
    Duration::from_secs(count)
}
