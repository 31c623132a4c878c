//! Known bugs, switched on one at a time, to show that the simulation finds each. Compiled with the feature `simulation`
//! alone: without it `planted!` is the word `false`, and nothing of this is in the program.

use std::cell::Cell;

/// What a relay could get wrong. Each name says what it does wrongly.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bug {
    /// The end of a transaction counts as soon as its last row is acknowledged, whatever lies before it.
    ConfirmsTheHighest,
    /// A keepalive's position counts while rows are in flight.
    ConfirmsAKeepalive,
    /// A transaction without a row of ours counts while rows before it are in flight.
    ConfirmsAnEmptyTransaction,
    /// A position goes to Postgres before it is recorded.
    ConfirmsBeforeTheRecord,
    /// A session asks for what it has read, not for what it has confirmed.
    StartsAhead,
    /// What was delivered on another history of the log is passed over on this one.
    RemembersAnotherHistory,
    /// What was delivered and not confirmed is published again after a mere reconnect.
    RemembersNothing,
    /// Records are fed while a failed one waits to be fed again.
    FeedsPastAFailure,
    /// Of the reports of a drain only the first one is fed again.
    LosesTheRestOfADrain,
    /// Records follow the first one of a partition before it is acknowledged.
    ForgetsTheFirstRecord,
    /// A record passes earlier ones of its topic that wait until the topic is open.
    OvertakesItsTopic,
    /// A report of success without an offset counts.
    TrustsNoOffset,
    /// A record that was perhaps stored counts as delivered.
    CountsThePossiblyStored,
    /// The first record of a refused batch is blamed.
    BlamesTheBatch,
    /// What Kafka does not confirm in time counts as delivered when the session ends.
    CountsWhatIsLetGo,
    /// A relay that is told to stop does so in the middle of a transaction, and says that nothing will repeat.
    StopsInATransaction,
    /// What was delivered before a reconnect, and not confirmed since, is left to the next process to repeat.
    StopsBeforeWhatItRemembers,
    /// The slot's next holder is told not to wait, although requests are under way.
    SignsOffEarly,
    /// A relay that takes the slot over does not wait for the requests of its last holder.
    TakesOverAtOnce,
    /// What a topic holds already is published again.
    ReadsNothingBack,
    /// Where a topic holds something, the next row counts as there.
    TakesAnythingForTheRow,
    /// A key's later rows flow as soon as somebody asks for its parked message.
    OpensAKeyEarly,
    /// A message counts as settled when it is ordered to be parked.
    ConfirmsBeforeItIsParked,
    /// The window does not close.
    ReadsWithoutBound,
    /// The state is not asked what the rows do.
    NeverSaysStalled,
}

impl Bug {
    pub const ALL: &[Bug] = &[
        Bug::ConfirmsTheHighest,
        Bug::ConfirmsAKeepalive,
        Bug::ConfirmsAnEmptyTransaction,
        Bug::ConfirmsBeforeTheRecord,
        Bug::StartsAhead,
        Bug::RemembersAnotherHistory,
        Bug::RemembersNothing,
        Bug::FeedsPastAFailure,
        Bug::LosesTheRestOfADrain,
        Bug::ForgetsTheFirstRecord,
        Bug::OvertakesItsTopic,
        Bug::TrustsNoOffset,
        Bug::CountsThePossiblyStored,
        Bug::BlamesTheBatch,
        Bug::CountsWhatIsLetGo,
        Bug::StopsInATransaction,
        Bug::StopsBeforeWhatItRemembers,
        Bug::SignsOffEarly,
        Bug::TakesOverAtOnce,
        Bug::ReadsNothingBack,
        Bug::TakesAnythingForTheRow,
        Bug::OpensAKeyEarly,
        Bug::ConfirmsBeforeItIsParked,
        Bug::ReadsWithoutBound,
        Bug::NeverSaysStalled,
    ];
}

thread_local! {
    static PLANTED: Cell<Option<Bug>> = const { Cell::new(None) };
}

/// From here on this thread's relays have the bug; None: no bug.
pub fn plant(bug: Option<Bug>) {
    PLANTED.set(bug);
}

pub fn is_planted(bug: Bug) -> bool {
    PLANTED.get() == Some(bug)
}
