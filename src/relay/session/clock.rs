//! What the server's clock says now, told from the frames that it sends: ages of its commits are measured on it alone, so that
//! a clock of ours that is wrong, or jumps, makes no row look old.

use super::*;

/// A server's clock that was put back is believed after twice this time.
const BELIEVED_FOR: Duration = Duration::from_secs(10);

/// A frame tells the clock of when it was sent, and may have waited before it was read: the furthest is the truest.
pub(super) struct ServerClock {
    /// Of this and the period before.
    furthest: Option<(Instant, SystemTime)>,
    /// Of this period.
    newer: Option<(Instant, SystemTime)>,
    since: Instant,
}

impl ServerClock {
    pub(super) fn new(now: Instant) -> ServerClock {
        ServerClock { furthest: None, newer: None, since: now }
    }

    /// A frame was read that was sent at this moment.
    pub(super) fn heard(&mut self, sent: SystemTime, now: Instant) {
        if now.saturating_duration_since(self.since) > BELIEVED_FOR {
            (self.furthest, self.newer, self.since) = (self.newer, None, now);
        }
        for known in [&mut self.furthest, &mut self.newer] {
            if known.is_none_or(|(at, said)| said + now.saturating_duration_since(at) < sent) {
                *known = Some((now, sent));
            }
        }
    }

    /// None before the first frame.
    pub(super) fn now(&self, now: Instant) -> Option<SystemTime> {
        self.furthest.map(|(at, said)| said + now.saturating_duration_since(at))
    }

    /// How long ago something was on the server's clock.
    pub(super) fn age(&self, at: SystemTime, now: Instant) -> Option<Duration> {
        self.now(now).map(|server| server.duration_since(at).unwrap_or_default())
    }

    /// How far it is ahead of ours, in seconds.
    pub(super) fn ahead_seconds(&self, now: Instant) -> Option<f64> {
        let ours = SystemTime::now();
        self.now(now).map(|server| match server.duration_since(ours) {
            Ok(ahead) => ahead.as_secs_f64(),
            Err(behind) => -behind.duration().as_secs_f64(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_that_waited_make_nothing_look_younger_and_a_clock_put_back_is_believed_in_time() {
        let (start, epoch) = (Instant::now(), SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000));
        let (moment, server) = (|s| start + Duration::from_secs(s), |s| epoch + Duration::from_secs(s));
        let mut clock = ServerClock::new(start);
        assert_eq!(clock.age(epoch, start), None);
        clock.heard(server(0), moment(0));
        // Sent long before it is read.
        clock.heard(server(1), moment(5));
        assert_eq!(clock.age(server(2), moment(8)), Some(Duration::from_secs(6)));
        assert_eq!(clock.age(server(9), moment(8)), Some(Duration::ZERO), "a commit after now is not old");
        // An hour back, or an hour of ours forward.
        for second in 9..40 {
            clock.heard(server(second) - Duration::from_secs(3_600), moment(second));
        }
        assert_eq!(clock.now(moment(40)), Some(server(40) - Duration::from_secs(3_600)));
        clock.heard(server(41), moment(41));
        assert_eq!(clock.now(moment(42)), Some(server(42)), "and forward at once");
    }
}
