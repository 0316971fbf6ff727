//! Admission control for jobs.

use super::telling::Budget;
use super::{Customer, Toll};
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};

const HOUR: u64 = 3600;

/// The limits for jobs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Only these customers, unless empty.
    pub allow: BTreeSet<Customer>,
    /// Never these customers.
    pub deny: BTreeSet<Customer>,
    /// The most jobs of one customer that are waiting or running.
    pub open_per_customer: usize,
    /// The most jobs of one customer in an hour.
    pub hourly_per_customer: usize,
    /// The most bytes of input.
    pub input_bytes: usize,
    /// Maximum age of a request, in seconds.
    pub max_age: u64,
    /// Maximum number of seconds by which a request may be dated ahead.
    pub max_ahead: u64,
    /// Minimum bid, in thousandths of a satoshi; 0 also admits requests without a bid.
    pub min_bid_msat: u64,
    /// The leading zero bits that an id has to have.
    pub min_work: u8,
    /// The most of them that strangers have to show while many of them wait.
    pub busy_work: u8,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            allow: BTreeSet::new(),
            deny: BTreeSet::new(),
            open_per_customer: 8,
            hourly_per_customer: 120,
            input_bytes: 64 * 1024,
            max_age: 24 * HOUR,
            max_ahead: 15 * 60,
            min_bid_msat: 0,
            min_work: 0,
            busy_work: 24,
        }
    }
}

/// The properties of a request that decide on its admission.
#[derive(Clone, Debug)]
pub struct Offer {
    /// The customer.
    pub customer: Customer,
    /// When the request was made, in seconds since 1970.
    pub created: u64,
    /// When it stops to matter.
    pub expiration: Option<u64>,
    /// The most that the customer pays.
    pub bid_msat: Option<u64>,
    /// The bits of proof of work that it shows.
    pub work: u8,
    /// The size of its inputs.
    pub input_bytes: usize,
}

/// The reason why a job is not admitted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The customer is on the deny list, or there is an allow list without it.
    #[error("this key is not allowed to submit jobs")]
    NotAllowed,
    /// Made too long ago.
    #[error("the request is older than {0} s")]
    TooOld(u64),
    /// Dated too far ahead.
    #[error("the request is dated more than {0} s in the future")]
    InFuture(u64),
    /// It has stopped to matter.
    #[error("the request has expired")]
    Expired,
    /// Too much input.
    #[error("the inputs have {found} bytes; the limit is {limit}")]
    InputTooLong {
        /// Bytes of input.
        found: usize,
        /// The limit.
        limit: usize,
    },
    /// The bid is too low.
    #[error("the bid is {found} msat; the minimum is {least}")]
    BidTooLow {
        /// The bid, 0 if there is none.
        found: u64,
        /// The least.
        least: u64,
    },
    /// Without proof of work.
    #[error("the event's id needs {0} bits of proof of work and a nonce tag that commits to them (NIP-13)")]
    NoWork(u8),
    /// Without the proof of work that strangers have to show now.
    #[error("busy: a key without a result from this service needs {0} bits of proof of work on its event's id now, and a nonce tag that commits to them (NIP-13); or try again later")]
    Busy(u8),
    /// Too many jobs of this customer at once.
    #[error("this key already has {0} open jobs; wait for one to finish")]
    TooManyOpen(usize),
    /// Too many jobs of this customer in an hour.
    #[error("this key submitted {0} jobs in the last hour; try again later")]
    TooManyAnHour(usize),
    /// No room for more.
    #[error("the queue is full; try again later")]
    QueueFull,
    /// Too many jobs of this customer that wait for inputs or payment.
    #[error("this key already has {0} jobs waiting for inputs or payment")]
    TooManyWaiting(usize),
    /// No room for more that wait.
    #[error("too many jobs are waiting for inputs or payment; try again later")]
    WaitingFull,
    /// Something about the request itself.
    #[error("{0}")]
    BadRequest(String),
    /// It asks for what is not offered.
    #[error("{0}")]
    NotOffered(String),
}

impl Refusal {
    /// A short name, for counters.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::NotAllowed => "not_allowed",
            Self::TooOld(_) => "too_old",
            Self::InFuture(_) => "in_future",
            Self::Expired => "expired",
            Self::InputTooLong { .. } => "input_too_long",
            Self::BidTooLow { .. } => "bid_too_low",
            Self::NoWork(_) => "no_work",
            Self::Busy(_) => "busy",
            Self::TooManyOpen(_) => "too_many_open",
            Self::TooManyAnHour(_) => "too_many_an_hour",
            Self::QueueFull => "queue_full",
            Self::TooManyWaiting(_) => "too_many_waiting",
            Self::WaitingFull => "waiting_full",
            Self::BadRequest(_) => "bad_request",
            Self::NotOffered(_) => "not_offered",
        }
    }

    /// The text without any value of the request, for encrypted ones.
    pub fn without_values(&self) -> String {
        match self {
            Self::InputTooLong { limit, .. } => {
                format!("the inputs are too long; the limit is {limit} bytes")
            }
            Self::BidTooLow { least, .. } => {
                format!("the bid is too low; the minimum is {least} msat")
            }
            other => other.to_string(),
        }
    }

    /// Whether the customer gets the refusal. No customer waits for an answer to a job that is over, or that has an implausible date.
    pub fn notifies_customer(&self) -> bool {
        !matches!(self, Self::TooOld(_) | Self::InFuture(_) | Self::Expired)
    }
}

/// Whether a customer hears of a refusal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tell {
    /// No.
    Never,
    /// At once.
    Now,
    /// When the service next tells strangers, see [`super::Telling`].
    InTurn,
}

/// Decides which jobs are admitted, and counts what that needs.
#[derive(Debug)]
pub struct Admission {
    limits: Limits,
    open: HashMap<Customer, usize>,
    recent: HashMap<Customer, VecDeque<u64>>,
    told: HashMap<Customer, VecDeque<u64>>,
    /// When customers last had a result.
    served: HashMap<Customer, u64>,
    toll: Toll,
    reach_out: Budget,
    refused: BTreeMap<&'static str, u64>,
}

/// Maximum number of refusals sent to one customer per hour: more would themselves be a load.
const TOLD_PER_HOUR: usize = 30;
/// The most refusals in a minute that strangers hear on relays which their requests name: each may need a connection.
const REACHED_STRANGERS: u64 = 12;
/// The most customers whose last hour is remembered; beyond it those that have been quiet longest are forgotten.
const REMEMBERED: usize = 10_000;

impl Admission {
    /// An admission with no open jobs.
    pub fn new(limits: Limits) -> Self {
        Self {
            toll: Toll::new(limits.busy_work),
            limits,
            open: HashMap::new(),
            recent: HashMap::new(),
            told: HashMap::new(),
            served: HashMap::new(),
            reach_out: Budget::new(REACHED_STRANGERS),
            refused: BTreeMap::new(),
        }
    }

    /// The limits.
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// Admits a job or refuses it; `free` says whether there is a slot for it, or why not. An admitted job counts as open.
    ///
    /// # Errors
    /// The first limit that the job exceeds. It is not counted yet: see [`Admission::refuse`].
    pub fn admit(
        &mut self,
        offer: &Offer,
        free: Result<(), Refusal>,
        now: u64,
    ) -> Result<(), Refusal> {
        let limits = &self.limits;
        let customer = offer.customer;
        let listed = limits.allow.is_empty() || limits.allow.contains(&customer);
        if !listed || limits.deny.contains(&customer) {
            return Err(Refusal::NotAllowed);
        }
        if offer.created > now.saturating_add(limits.max_ahead) {
            return Err(Refusal::InFuture(limits.max_ahead));
        }
        if offer.created.saturating_add(limits.max_age) < now {
            return Err(Refusal::TooOld(limits.max_age));
        }
        if offer.expiration.is_some_and(|at| at <= now) {
            return Err(Refusal::Expired);
        }
        if offer.input_bytes > limits.input_bytes {
            return Err(Refusal::InputTooLong {
                found: offer.input_bytes,
                limit: limits.input_bytes,
            });
        }
        let bid = offer.bid_msat.unwrap_or(0);
        if bid < limits.min_bid_msat {
            return Err(Refusal::BidTooLow {
                found: bid,
                least: limits.min_bid_msat,
            });
        }
        if offer.work < limits.min_work {
            return Err(Refusal::NoWork(limits.min_work));
        }
        if offer.work < self.toll.bits() && !self.is_known(customer) {
            return Err(Refusal::Busy(self.toll.bits()));
        }
        let open = self.open.get(&customer).copied().unwrap_or(0);
        if open >= limits.open_per_customer {
            return Err(Refusal::TooManyOpen(open));
        }
        if within_hour(&mut self.recent, customer, now) >= limits.hourly_per_customer {
            return Err(Refusal::TooManyAnHour(limits.hourly_per_customer));
        }
        free?;
        self.recent.entry(customer).or_default().push_back(now);
        self.reopen(customer);
        Ok(())
    }

    /// Counts a job as open that was admitted before a restart.
    pub fn reopen(&mut self, customer: Customer) {
        *self.open.entry(customer).or_default() += 1;
    }

    /// Says that a job of this customer has ended.
    pub fn close(&mut self, customer: Customer) {
        if let Some(open) = self.open.get_mut(&customer) {
            *open = open.saturating_sub(1);
            if *open == 0 {
                self.open.remove(&customer);
            }
        }
    }

    /// Notes that a customer had a result.
    pub fn serve(&mut self, customer: Customer, now: u64) {
        if self.served.len() >= REMEMBERED && !self.is_known(customer) {
            let quietest = self.served.iter().min_by_key(|(_, last)| **last);
            if let Some(quietest) = quietest.map(|(customer, _)| *customer) {
                self.served.remove(&quietest);
            }
        }
        self.served.insert(customer, now);
    }

    /// Whether a customer had a result or is on the allow list: all others are strangers.
    pub fn is_known(&self, customer: Customer) -> bool {
        self.served.contains_key(&customer) || self.limits.allow.contains(&customer)
    }

    /// Notes how many jobs of strangers wait in a queue of this size: see [`Toll`].
    pub fn note_load(&mut self, waiting: usize, queue: usize, now: u64) {
        self.toll.update(waiting, queue, now);
    }

    /// Whether strangers take much of the queue.
    pub fn is_busy(&self) -> bool {
        self.toll.is_busy()
    }

    /// Counts a refusal, and says whether to tell the customer: each key gets at most 30 per hour, and strangers take turns.
    pub fn refuse(&mut self, customer: Customer, refusal: &Refusal, now: u64) -> Tell {
        self.count(refusal.reason());
        if !refusal.notifies_customer()
            || within_hour(&mut self.told, customer, now) >= TOLD_PER_HOUR
        {
            return Tell::Never;
        }
        if self.is_known(customer) {
            Tell::Now
        } else {
            Tell::InTurn
        }
    }

    /// Notes that a customer heard of a refusal.
    pub fn note_told(&mut self, customer: Customer, now: u64) {
        within_hour(&mut self.told, customer, now);
        self.told.entry(customer).or_default().push_back(now);
    }

    /// Whether a refusal also goes to the relays that the request names: for strangers, 12 per minute.
    pub fn reaches_out(&mut self, customer: Customer, now: u64) -> bool {
        self.is_known(customer) || self.reach_out.take(now)
    }

    /// Counts an event that was dropped for a reason other than a limit, such as a forged signature.
    pub fn count(&mut self, reason: &'static str) {
        self.count_more(reason, 1);
    }

    /// The same for several at once.
    pub fn count_more(&mut self, reason: &'static str, count: u64) {
        if count > 0 {
            *self.refused.entry(reason).or_default() += count;
        }
    }

    /// Number of refusals by reason.
    pub fn refused(&self) -> &BTreeMap<&'static str, u64> {
        &self.refused
    }
}

/// Number of this customer's entries of the last hour. Older ones are dropped.
fn within_hour(
    times: &mut HashMap<Customer, VecDeque<u64>>,
    customer: Customer,
    now: u64,
) -> usize {
    let since = now.saturating_sub(HOUR);
    if times.len() >= REMEMBERED {
        times.retain(|_, times| times.back().is_some_and(|last| *last > since));
        while times.len() >= REMEMBERED {
            let quietest = times.iter().min_by_key(|(_, times)| times.back().copied());
            match quietest.map(|(customer, _)| *customer) {
                Some(quietest) => times.remove(&quietest),
                None => break,
            };
        }
    }
    let Some(times) = times.get_mut(&customer) else {
        return 0;
    };
    while times.front().is_some_and(|first| *first <= since) {
        times.pop_front();
    }
    times.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: u64 = 1_800_000_000;

    fn offer(customer: u8) -> Offer {
        Offer {
            customer: Customer([customer; 32]),
            created: NOW,
            expiration: None,
            bid_msat: None,
            work: 0,
            input_bytes: 10,
        }
    }

    #[test]
    fn each_limit_refuses_by_its_name() {
        let limits = Limits {
            deny: [Customer([9; 32])].into(),
            min_bid_msat: 5,
            min_work: 8,
            ..Limits::default()
        };
        let mut admission = Admission::new(limits);
        let good = Offer {
            bid_msat: Some(5),
            work: 8,
            ..offer(1)
        };
        let mut refused = |change: &dyn Fn(&mut Offer), free| {
            let mut offer = good.clone();
            change(&mut offer);
            admission.admit(&offer, free, NOW).unwrap_err().reason()
        };
        assert_eq!(
            refused(&|o| o.customer = Customer([9; 32]), Ok(())),
            "not_allowed"
        );
        assert_eq!(refused(&|o| o.created = 978_307_200, Ok(())), "too_old");
        assert_eq!(refused(&|o| o.created = u64::MAX, Ok(())), "in_future");
        assert_eq!(refused(&|o| o.expiration = Some(NOW), Ok(())), "expired");
        assert_eq!(
            refused(&|o| o.input_bytes = 70_000, Ok(())),
            "input_too_long"
        );
        assert_eq!(refused(&|o| o.bid_msat = Some(4), Ok(())), "bid_too_low");
        assert_eq!(refused(&|o| o.bid_msat = None, Ok(())), "bid_too_low");
        assert_eq!(refused(&|o| o.work = 7, Ok(())), "no_work");
        assert_eq!(refused(&|_| (), Err(Refusal::QueueFull)), "queue_full");
        assert_eq!(admission.admit(&good, Ok(()), NOW), Ok(()));
    }

    #[test]
    fn strangers_alone_show_more_work_while_many_of_them_wait() {
        let limits = Limits {
            min_work: 4,
            ..Limits::default()
        };
        let mut admission = Admission::new(limits);
        admission.serve(Customer([2; 32]), NOW);
        admission.note_load(64, 64, NOW);
        let admit = |admission: &mut Admission, who, work| {
            let offer = Offer { work, ..offer(who) };
            admission.admit(&offer, Ok(()), NOW)
        };
        assert_eq!(admit(&mut admission, 1, 3), Err(Refusal::NoWork(4)));
        assert_eq!(admit(&mut admission, 1, 11), Err(Refusal::Busy(12)));
        assert_eq!(admit(&mut admission, 1, 12), Ok(()));
        assert_eq!(admit(&mut admission, 2, 3), Err(Refusal::NoWork(4)));
        assert_eq!(admit(&mut admission, 2, 4), Ok(()));
        admission.note_load(0, 64, NOW + 1);
        assert_eq!(admit(&mut admission, 3, 4), Ok(()));
    }

    #[test]
    fn an_allow_list_keeps_everybody_else_out() {
        let limits = Limits {
            allow: [Customer([1; 32])].into(),
            ..Limits::default()
        };
        let mut admission = Admission::new(limits);
        assert_eq!(admission.admit(&offer(1), Ok(()), NOW), Ok(()));
        let other = admission.admit(&offer(2), Ok(()), NOW);
        assert_eq!(other, Err(Refusal::NotAllowed));
    }

    #[test]
    fn quotas_are_each_customers_own_and_end() {
        let limits = Limits {
            open_per_customer: 2,
            hourly_per_customer: 3,
            ..Limits::default()
        };
        let mut admission = Admission::new(limits);
        let admit = |admission: &mut Admission, customer, now| {
            let offer = Offer {
                created: now,
                ..offer(customer)
            };
            admission.admit(&offer, Ok(()), now).map_err(|r| r.reason())
        };
        assert_eq!(admit(&mut admission, 1, NOW), Ok(()));
        assert_eq!(admit(&mut admission, 1, NOW), Ok(()));
        assert_eq!(admit(&mut admission, 1, NOW), Err("too_many_open"));
        assert_eq!(admit(&mut admission, 2, NOW), Ok(()));
        admission.close(Customer([1; 32]));
        assert_eq!(admit(&mut admission, 1, NOW + 1), Ok(()));
        admission.close(Customer([1; 32]));
        admission.close(Customer([1; 32]));
        assert_eq!(admit(&mut admission, 1, NOW + 2), Err("too_many_an_hour"));
        assert_eq!(admit(&mut admission, 1, NOW + HOUR), Ok(()));
    }

    #[test]
    fn refusals_are_counted_always_and_told_a_few_times() {
        let mut admission = Admission::new(Limits::default());
        let customer = Customer([1; 32]);
        let mut told = 0;
        for _ in 0..100 {
            if admission.refuse(customer, &Refusal::QueueFull, NOW) == Tell::InTurn {
                told += 1;
                admission.note_told(customer, NOW);
            }
        }
        assert_eq!(told, TOLD_PER_HOUR);
        let old = admission.refuse(Customer([2; 32]), &Refusal::TooOld(1), NOW);
        assert_eq!(old, Tell::Never);
        assert_eq!(admission.refused()["queue_full"], 100);
        assert_eq!(admission.refused()["too_old"], 1);
    }

    #[test]
    fn known_customers_hear_at_once_and_those_quiet_longest_are_forgotten() {
        let mut admission = Admission::new(Limits::default());
        let key = |number: u32| {
            let mut customer = [0; 32];
            customer[..4].copy_from_slice(&number.to_le_bytes());
            Customer(customer)
        };
        for number in 0..(REMEMBERED as u32 + 10) {
            admission.serve(key(number), NOW + u64::from(number));
        }
        assert_eq!(admission.served.len(), REMEMBERED);
        let mut refuse = |n| admission.refuse(key(n), &Refusal::QueueFull, NOW);
        assert_eq!((refuse(9), refuse(10)), (Tell::InTurn, Tell::Now));
    }

    #[test]
    fn the_books_stay_bounded() {
        let mut admission = Admission::new(Limits::default());
        for number in 0..(REMEMBERED as u32 + 500) {
            let mut customer = [0; 32];
            customer[..4].copy_from_slice(&number.to_le_bytes());
            let offer = Offer {
                customer: Customer(customer),
                ..offer(0)
            };
            admission.admit(&offer, Ok(()), NOW).unwrap();
            admission.close(Customer(customer));
        }
        assert!(admission.recent.len() <= REMEMBERED);
        assert!(admission.open.is_empty());
    }
}
