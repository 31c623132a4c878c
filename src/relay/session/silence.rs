//! A server from which nothing comes is not the same as one that has nothing to say. One that is asked and does not answer
//! hangs; one that answers and holds the log back waits for a standby. Neither may look like an idle stream.

use super::*;

/// In the middle of a large transaction that is not ours the server takes half of `wal_sender_timeout` to answer, 30 s unless
/// it is set.
const ANSWERS_WITHIN: Duration = Duration::from_secs(40);
/// A standby that is there confirms within moments.
const STANDBY_WITHIN: Duration = Duration::from_secs(10);
/// What `pg_stat_activity` calls the wait for `synchronized_standby_slots`.
const STANDBY_WAIT: &str = "WaitForStandbyConfirmation";

/// What the server owes us.
#[derive(Default)]
pub(super) struct Silence {
    /// Since when it has been asked for a sign of life without giving one.
    asked: Option<Instant>,
    /// Since when each look has found it waiting for a standby, and what had been received then.
    held_back: Option<(Instant, Lsn)>,
}

impl Silence {
    /// A status update went out, which asked for an answer or did not.
    pub(super) fn asked(&mut self, asked: bool, now: Instant) {
        self.asked = asked.then(|| self.asked.unwrap_or(now));
    }

    /// Something came.
    pub(super) fn broken(&mut self) {
        self.asked = None;
    }

    /// The slot was looked at.
    pub(super) fn look(&mut self, slot: Option<&SlotFacts>, received: Lsn, now: Instant) {
        let event = slot.and_then(|slot| slot.holder.as_ref()?.wait_event.as_deref());
        let since = self.held_back.filter(|(_, before)| *before == received);
        self.held_back = (event == Some(STANDBY_WAIT)).then(|| since.unwrap_or((now, received)));
    }

    pub(super) fn of(&self, now: Instant) -> Option<Quiet> {
        let lasts = |since: Instant, limit| now.saturating_duration_since(since) >= limit;
        match (self.held_back, self.asked) {
            (Some((since, _)), _) if lasts(since, STANDBY_WITHIN) => Some(Quiet::ForStandby),
            (_, Some(since)) if lasts(since, ANSWERS_WITHIN) => Some(Quiet::NoAnswer),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_that_does_not_answer_is_not_idle() {
        let (mut silence, start) = (Silence::default(), Instant::now());
        for second in 0..100 {
            silence.asked(true, start + Duration::from_secs(second));
        }
        assert_eq!(silence.of(start + Duration::from_secs(39)), None);
        assert_eq!(silence.of(start + Duration::from_secs(40)), Some(Quiet::NoAnswer));
        silence.broken();
        silence.asked(true, start + Duration::from_secs(100));
        assert_eq!(silence.of(start + Duration::from_secs(139)), None);
        // While reading is closed nothing is asked, and nothing is owed.
        silence.asked(false, start + Duration::from_secs(139));
        assert_eq!(silence.of(start + Duration::from_secs(500)), None);
    }

    #[test]
    fn a_server_that_waits_for_a_standby_all_the_time_is_not_idle() {
        let (mut silence, start) = (Silence::default(), Instant::now());
        let waiting: SlotFacts = serde_json::from_value(serde_json::json!({
            "slot_name": "s", "slot_type": "logical", "temporary": false, "active": true,
            "holder": {"pid": 1, "user": null, "application": null, "address": null, "since": null, "wait_event": STANDBY_WAIT}
        }))
        .expect("a slot");
        let mut at = |seconds, slot: Option<&SlotFacts>, received| {
            let now = start + Duration::from_secs(seconds);
            silence.look(slot, Lsn(received), now);
            silence.of(now)
        };
        assert_eq!(at(0, Some(&waiting), 7), None);
        // It waits at this moment, too, and has sent something in between.
        assert_eq!(at(20, Some(&waiting), 8), None);
        assert_eq!(at(30, Some(&waiting), 8), Some(Quiet::ForStandby));
        assert_eq!(at(40, None, 8), None);
    }
}
