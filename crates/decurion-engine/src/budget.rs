//! Hard and fair budgets. Takes what a request may cost at most, and admits it, lets it wait or refuses it before it
//! is sent; takes the true cost after. What was spent never exceeds a limit.
//!
//! Accounts form a tree shaped like the agents': a reservation is made on every account from the asking one up to
//! the root, or on none.
//!
//! Only what is *spent* refuses a request: one that fits beside what is spent, but not beside what others have
//! reserved, waits until a reservation is settled. Waiting is first come, first served among requests that share a
//! limited account, so that a small request never overtakes a large one for ever. Nothing can wait in a circle: a
//! request that waits holds no reservation, and a reservation is held only while its request is with the provider,
//! which waits for no budget, no agent and no slot. So a reservation is always settled, and then the first that
//! waits there either fits or has become impossible.

use std::collections::VecDeque;
use std::sync::Arc;

use decurion_protocol::{Limits, Money};
use tokio::sync::{Notify, watch};

/// One account of the tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AccountId(usize);

/// What is set aside for one request until its true cost is known. Give it back with [`Budget::settle`].
#[derive(Debug, PartialEq, Eq)]
#[must_use = "a reservation that is never settled blocks its amount for good"]
pub struct Reservation {
    /// Whose request it is.
    pub account: AccountId,
    /// The most that the request costs.
    pub amount: Amount,
    /// The most output tokens that it pays for.
    pub output: u64,
}

/// What a request may cost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Want {
    /// The most that its input costs.
    pub input: Amount,
    /// How many output tokens it asks for.
    pub output: u64,
    /// The fewest that are worth asking for: with less left unspent, it is refused.
    pub least_output: u64,
    /// What an output token costs.
    pub output_price: u64,
}

impl Want {
    /// The most that it costs with so many output tokens.
    fn amount(&self, output: u64) -> Amount {
        let money = Money(self.input.money.0.saturating_add(output.saturating_mul(self.output_price)));
        Amount { tokens: self.input.tokens.saturating_add(output), money }
    }
}

/// A request that waits for reservations to be settled.
#[derive(Debug)]
struct Waiter {
    ticket: Ticket,
    account: AccountId,
    want: Want,
    /// Told when it may be worth asking again; keeps one such word.
    again: Arc<Notify>,
}

/// A place among those that wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ticket(u64);

/// Tokens and money together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Amount {
    /// Tokens of all classes.
    pub tokens: u64,
    pub money: Money,
}

/// What is left, and whose account has the least.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Left<T> {
    pub amount: T,
    pub account: AccountId,
}

/// The limit that a request would break even if nothing else were reserved.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Exhausted {
    #[error("the next request can use up to {} tokens, and {} of {} are left", .0.needed, .0.left, .0.limit)]
    Tokens(Shortfall<u64>),
    #[error(
        "the next request can cost up to ${:.4}, and ${:.4} of ${:.4} is left",
        .0.needed.dollars(), .0.left.dollars(), .0.limit.dollars()
    )]
    Money(Shortfall<Money>),
}

/// A limit of which too little is left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shortfall<T> {
    /// The most that the request can use, with the shortest reply worth asking for.
    pub needed: T,
    /// The limit less what was spent.
    pub left: T,
    pub limit: T,
}

impl Exhausted {
    /// The word for it in an outcome.
    pub fn word(self) -> &'static str {
        match self {
            Self::Tokens(_) => "tokens",
            Self::Money(_) => "money",
        }
    }
}

/// The tree of accounts.
#[derive(Debug, Default)]
pub struct Budget {
    accounts: Vec<Account>,
    /// In the order they came.
    waiters: VecDeque<Waiter>,
    tickets: u64,
    /// Changes with the limits.
    limits: watch::Sender<()>,
}

#[derive(Clone, Debug)]
struct Account {
    parent: Option<AccountId>,
    tokens: Option<u64>,
    money: Option<Money>,
    spent: Amount,
    reserved: Amount,
}

impl Budget {
    /// Opens an account with these limits below another, or as a root.
    pub fn open(&mut self, parent: Option<AccountId>, limits: &Limits) -> AccountId {
        self.open_again(parent, limits, Amount::default())
    }

    /// The same for an agent that has spent before, in a process that is gone.
    pub fn open_again(&mut self, parent: Option<AccountId>, limits: &Limits, spent: Amount) -> AccountId {
        self.accounts.push(Account {
            parent,
            tokens: limits.tokens,
            money: limits.money,
            spent,
            reserved: Amount::default(),
        });
        AccountId(self.accounts.len() - 1)
    }

    /// Sets aside what a request may cost, on the account and everything above it; none if it must wait. Asks for
    /// fewer output tokens where what is unspent does not pay for all, never because of what others have reserved.
    pub fn reserve(&mut self, account: AccountId, want: &Want) -> Result<Option<Reservation>, Exhausted> {
        let behind = self.waiters.iter().any(|waiter| self.shares_limit(waiter.account, account));
        self.admit(account, want, behind)
    }

    /// A place in line for a request that must wait. It hears there when to [ask again](Self::try_again), and must
    /// [leave](Self::leave) if it gives up.
    pub fn queue(&mut self, account: AccountId, want: Want) -> (Ticket, Arc<Notify>) {
        self.tickets += 1;
        let (ticket, again) = (Ticket(self.tickets), Arc::new(Notify::new()));
        self.waiters.push_back(Waiter { ticket, account, want, again: Arc::clone(&again) });
        // What it waits for may have happened since it was told to wait.
        self.wake();
        (ticket, again)
    }

    /// The same as [`reserve`](Self::reserve) for one that waits. With an answer, its place is given up.
    pub fn try_again(&mut self, ticket: Ticket) -> Result<Option<Reservation>, Exhausted> {
        let Some(place) = self.waiters.iter().position(|waiter| waiter.ticket == ticket) else {
            return Ok(None);
        };
        let Waiter { account, want, .. } = &self.waiters[place];
        let (account, want) = (*account, *want);
        let mut before = self.waiters.iter().take(place);
        let behind = before.any(|waiter| self.shares_limit(waiter.account, account));
        let answer = self.admit(account, &want, behind);
        if !matches!(answer, Ok(None)) {
            self.waiters.remove(place);
            self.wake();
        }
        answer
    }

    /// Gives a place in line up.
    pub fn leave(&mut self, ticket: Ticket) {
        let before = self.waiters.len();
        self.waiters.retain(|waiter| waiter.ticket != ticket);
        if self.waiters.len() < before {
            self.wake();
        }
    }

    /// Counts what a try of a request used that is made again: its reservation stays as it is. False if that no longer
    /// fits, so that the request must be reserved anew before it is sent again.
    #[must_use]
    pub fn charge(&mut self, reservation: &Reservation, used: Amount) -> bool {
        for id in self.path(reservation.account).collect::<Vec<_>>() {
            self.accounts[id.0].spent.add(used);
        }
        // A request that waits may have become impossible.
        self.wake();
        self.has_room(reservation.account, Amount::default())
    }

    /// Ends a reservation with what was truly used.
    #[allow(clippy::needless_pass_by_value)] // a reservation is settled once, so it is consumed
    pub fn settle(&mut self, reservation: Reservation, used: Amount) {
        for id in self.path(reservation.account).collect::<Vec<_>>() {
            let account = &mut self.accounts[id.0];
            account.reserved.take(reservation.amount);
            account.spent.add(used);
        }
        self.wake();
    }

    fn admit(
        &mut self,
        account: AccountId,
        want: &Want,
        behind: bool,
    ) -> Result<Option<Reservation>, Exhausted> {
        let output = self.affordable(account, want)?;
        let amount = want.amount(output);
        if behind || !self.has_room(account, amount) {
            return Ok(None);
        }
        for id in self.path(account).collect::<Vec<_>>() {
            self.accounts[id.0].reserved.add(amount);
        }
        Ok(Some(Reservation { account, amount, output }))
    }

    /// How many output tokens of a request all that is unspent pays for, if that is worth asking.
    fn affordable(&self, account: AccountId, want: &Want) -> Result<u64, Exhausted> {
        let mut output = want.output;
        for id in self.path(account) {
            output = self.accounts[id.0].affordable(want, output)?;
        }
        Ok(output)
    }

    /// Tells those who could be answered now to ask again.
    fn wake(&self) {
        if self.waiters.is_empty() {
            return;
        }
        // A request that shares a limited account with one that came before and still waits stays behind it.
        let mut claimed = vec![false; self.accounts.len()];
        for waiter in &self.waiters {
            let limited = || self.path(waiter.account).filter(|id| self.accounts[id.0].is_limited());
            let behind = limited().any(|id| claimed[id.0]);
            let can_answer = match self.affordable(waiter.account, &waiter.want) {
                Ok(output) => !behind && self.has_room(waiter.account, waiter.want.amount(output)),
                Err(_) => true,
            };
            if can_answer {
                waiter.again.notify_one();
            }
            limited().for_each(|id| claimed[id.0] = true);
        }
    }

    /// Whether an amount fits beside all that is spent and reserved.
    fn has_room(&self, account: AccountId, amount: Amount) -> bool {
        self.path(account).all(|id| self.accounts[id.0].has_room(amount))
    }

    /// Whether an account on the path to the root has a limit.
    pub fn is_limited(&self, account: AccountId) -> bool {
        self.path(account).any(|id| self.accounts[id.0].is_limited())
    }

    /// Whether two accounts have a limited one in common on their ways to the root.
    fn shares_limit(&self, one: AccountId, other: AccountId) -> bool {
        let limited = |id: &AccountId| self.accounts[id.0].is_limited();
        self.path(one).filter(limited).any(|id| self.path(other).any(|also| also == id))
    }

    /// How many tokens are not spent on the path to the root, whatever others have reserved; none where no account
    /// has a limit.
    pub fn unspent_tokens(&self, account: AccountId) -> Option<u64> {
        let unspent = |id: AccountId| {
            let account = &self.accounts[id.0];
            account.tokens.map(|limit| limit.saturating_sub(account.spent.tokens))
        };
        self.path(account).filter_map(unspent).min()
    }

    /// How much money is left on the path to the root; none where no account has a limit.
    pub fn money_left(&self, account: AccountId) -> Option<Money> {
        self.least_money(account).map(|left| left.amount)
    }

    /// How many tokens are left on the path to the root; none where no account has a limit.
    pub fn tokens_left(&self, account: AccountId) -> Option<u64> {
        self.least_tokens(account).map(|left| left.amount)
    }

    /// The same with the account that has the least.
    pub fn least_money(&self, account: AccountId) -> Option<Left<Money>> {
        let left = |account: &Account| {
            let gone = account.gone().money;
            account.money.map(|limit| Money(limit.0.saturating_sub(gone.0)))
        };
        self.least(account, left)
    }

    /// The same for tokens.
    pub fn least_tokens(&self, account: AccountId) -> Option<Left<u64>> {
        let left =
            |account: &Account| account.tokens.map(|limit| limit.saturating_sub(account.gone().tokens));
        self.least(account, left)
    }

    fn least<T: Ord>(&self, account: AccountId, left: impl Fn(&Account) -> Option<T>) -> Option<Left<T>> {
        let left =
            |account: AccountId| left(&self.accounts[account.0]).map(|amount| Left { amount, account });
        self.path(account).filter_map(left).min_by(|one, other| one.amount.cmp(&other.amount))
    }

    /// What the account and those below it have used or set aside.
    pub fn gone(&self, account: AccountId) -> Amount {
        self.accounts[account.0].gone()
    }

    /// Gives an account these limits from now on.
    pub fn relimit(&mut self, account: AccountId, limits: &Limits) {
        let account = &mut self.accounts[account.0];
        (account.tokens, account.money) = (limits.tokens, limits.money);
        self.limits.send_replace(());
        self.wake();
    }

    /// Changes whenever an account is given other limits.
    pub fn limits(&self) -> watch::Receiver<()> {
        self.limits.subscribe()
    }

    /// Gives an account these limits below another from now on; what it has spent stays where it was counted.
    pub fn limit(&mut self, account: AccountId, parent: AccountId, limits: &Limits) {
        self.accounts[account.0].parent = Some(parent);
        self.relimit(account, limits);
    }

    /// What the account and those below it have used.
    pub fn spent(&self, account: AccountId) -> Amount {
        self.accounts[account.0].spent
    }

    fn path(&self, account: AccountId) -> impl Iterator<Item = AccountId> {
        std::iter::successors(Some(account), |id| self.accounts[id.0].parent)
    }
}

impl Account {
    /// What it has used or set aside.
    fn gone(&self) -> Amount {
        let mut gone = self.spent;
        gone.add(self.reserved);
        gone
    }

    fn is_limited(&self) -> bool {
        self.tokens.is_some() || self.money.is_some()
    }

    /// How many of so many output tokens what is unspent pays for.
    fn affordable(&self, want: &Want, mut output: u64) -> Result<u64, Exhausted> {
        let least = want.least_output.min(want.output);
        let needed = want.amount(least);
        if let Some(limit) = self.money {
            let left = Money(limit.0.saturating_sub(self.spent.money.0));
            let exhausted = Exhausted::Money(Shortfall { needed: needed.money, left, limit });
            let for_output = left.0.checked_sub(want.input.money.0).ok_or(exhausted)?;
            output = output.min(for_output.checked_div(want.output_price).unwrap_or(output));
            // Beyond a limit that was lowered there is no room for a request that costs nothing either.
            if output < least || self.spent.money > limit {
                return Err(exhausted);
            }
        }
        if let Some(limit) = self.tokens {
            let left = limit.saturating_sub(self.spent.tokens);
            let exhausted = Exhausted::Tokens(Shortfall { needed: needed.tokens, left, limit });
            output = output.min(left.checked_sub(want.input.tokens).ok_or(exhausted)?);
            if output < least || self.spent.tokens > limit {
                return Err(exhausted);
            }
        }
        Ok(output)
    }

    /// Whether an amount fits beside what is spent and reserved.
    fn has_room(&self, amount: Amount) -> bool {
        let mut then = self.gone();
        then.add(amount);
        self.tokens.is_none_or(|limit| then.tokens <= limit)
            && self.money.is_none_or(|limit| then.money <= limit)
    }
}

impl Amount {
    pub fn add(&mut self, other: Self) {
        self.tokens = self.tokens.saturating_add(other.tokens);
        self.money = self.money.plus(other.money);
    }

    fn take(&mut self, other: Self) {
        self.tokens = self.tokens.saturating_sub(other.tokens);
        self.money = Money(self.money.0.saturating_sub(other.money.0));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt as _;
    use proptest::prelude::*;

    fn limits(tokens: Option<u64>, money: Option<u64>) -> Limits {
        Limits { tokens, money: money.map(Money), ..Limits::default() }
    }

    /// A request that costs so much, no less.
    fn fixed(tokens: u64, money: u64) -> Want {
        Want { input: Amount { tokens, money: Money(money) }, ..Want::default() }
    }

    fn tokens(tokens: u64) -> Amount {
        Amount { tokens, money: Money(0) }
    }

    #[test]
    fn a_child_cannot_spend_what_its_parent_does_not_have() {
        let mut budget = Budget::default();
        let root = budget.open(None, &limits(None, Some(100)));
        let child = budget.open(Some(root), &limits(None, Some(1_000)));
        let first = budget.reserve(child, &fixed(1, 90)).unwrap().unwrap();
        let short = |needed, left| {
            Exhausted::Money(Shortfall { needed: Money(needed), left: Money(left), limit: Money(100) })
        };
        assert_eq!(budget.reserve(child, &fixed(1, 101)), Err(short(101, 100)));
        assert_eq!(budget.reserve(child, &fixed(1, 11)), Ok(None));
        assert_eq!(budget.money_left(child), Some(Money(10)));
        budget.settle(first, Amount { tokens: 1, money: Money(40) });
        assert_eq!(budget.money_left(root), Some(Money(60)));
        assert_eq!(budget.spent(root).money, Money(40));
        assert_eq!(budget.reserve(child, &fixed(1, 61)), Err(short(61, 60)));
    }

    #[test]
    fn output_shrinks_to_what_is_unspent_and_not_to_what_others_left_over() {
        let mut budget = Budget::default();
        let root = budget.open(None, &limits(Some(1_000), None));
        let want = Want { input: tokens(100), output: 800, least_output: 50, output_price: 0 };
        let first = budget.reserve(root, &want).unwrap().unwrap();
        assert_eq!(first.output, 800);
        assert_eq!(budget.reserve(root, &want), Ok(None));
        budget.settle(first, tokens(300));
        let second = budget.reserve(root, &want).unwrap().unwrap();
        assert_eq!(second.output, 600);
        budget.settle(second, tokens(560));
        assert_eq!(
            budget.reserve(root, &want),
            Err(Exhausted::Tokens(Shortfall { needed: 150, left: 140, limit: 1_000 }))
        );
    }

    #[test]
    fn a_small_request_does_not_overtake_a_large_one_on_the_same_account() {
        let mut budget = Budget::default();
        let root = budget.open(None, &limits(None, None));
        let limited = budget.open(Some(root), &limits(Some(100), None));
        let free = budget.open(Some(root), &limits(None, None));
        let held = budget.reserve(limited, &fixed(60, 0)).unwrap().unwrap();
        assert_eq!(budget.reserve(limited, &fixed(90, 0)), Ok(None));
        let (large, again) = budget.queue(limited, fixed(90, 0));
        assert_eq!(budget.reserve(limited, &fixed(10, 0)), Ok(None));
        let (small, small_again) = budget.queue(limited, fixed(10, 0));
        assert!(budget.reserve(free, &fixed(1_000, 0)).unwrap().is_some());
        assert_eq!(again.notified().now_or_never(), None);
        budget.settle(held, tokens(0));
        assert_eq!(again.notified().now_or_never(), Some(()));
        assert_eq!(small_again.notified().now_or_never(), None);
        assert_eq!(budget.try_again(small), Ok(None));
        budget.leave(large);
        assert_eq!(small_again.notified().now_or_never(), Some(()));
        assert!(budget.try_again(small).unwrap().is_some());
    }

    #[test]
    fn beyond_a_lowered_limit_even_a_free_request_is_refused() {
        let mut budget = Budget::default();
        let root = budget.open(None, &limits(Some(100), Some(100)));
        let held = budget.reserve(root, &fixed(60, 60)).unwrap().unwrap();
        budget.settle(held, Amount { tokens: 60, money: Money(60) });
        for lowered in [limits(Some(0), None), limits(None, Some(0))] {
            budget.relimit(root, &lowered);
            assert!(budget.reserve(root, &fixed(0, 0)).is_err());
        }
    }

    #[derive(Clone, Copy, Debug)]
    enum Op {
        Ask {
            account: usize,
            input: u64,
            output: u64,
        },
        Settle {
            which: usize,
            percent: u64,
        },
        /// A try of a request ends so, and it is made again if that fits.
        BreakOff {
            which: usize,
            percent: u64,
        },
        GiveUp {
            which: usize,
        },
        Relimit {
            account: usize,
            limit: Option<u64>,
        },
        /// The process dies, and the next one goes by what is on record.
        Crash,
    }

    fn op() -> impl Strategy<Value = Op> {
        prop_oneof![
            6 => (0usize..7, 0u64..80, 0u64..60)
                .prop_map(|(account, input, output)| Op::Ask { account, input, output }),
            5 => (0usize..9, 0u64..=100).prop_map(|(which, percent)| Op::Settle { which, percent }),
            2 => (0usize..9, 0u64..=100).prop_map(|(which, percent)| Op::BreakOff { which, percent }),
            1 => (0usize..9).prop_map(|which| Op::GiveUp { which }),
            1 => Just(Op::Crash),
            1 => (0usize..7, prop::option::of(0u64..600))
                .prop_map(|(account, limit)| Op::Relimit { account, limit }),
        ]
    }

    fn part(reservation: &Reservation, percent: u64) -> Amount {
        let Amount { tokens, money } = reservation.amount;
        Amount { tokens: tokens * percent / 100, money: Money(money.0 * percent / 100) }
    }

    /// The most that an account with this limit may have spent in the end, if so much was gone when it got the limit.
    fn bound(limit: u64, gone: Amount) -> Amount {
        // Each by itself: money is rounded in another way than tokens.
        Amount { tokens: limit.max(gone.tokens), money: Money(limit * 3).max(gone.money) }
    }

    /// Some requests on a tree of seven accounts, and what must hold after each step.
    struct World {
        budget: Budget,
        ids: Vec<AccountId>,
        held: Vec<Reservation>,
        waiting: Vec<(Ticket, Arc<Notify>, Waiting)>,
        /// The most that each account may have spent: its limit, or what was under way when that was lowered.
        bounds: Vec<Option<Amount>>,
    }

    #[derive(Clone, Copy)]
    struct Waiting {
        account: usize,
        want: Want,
    }

    impl World {
        fn new(caps: &[Option<u64>]) -> Self {
            let mut budget = Budget::default();
            let mut ids = Vec::new();
            for (index, cap) in caps.iter().enumerate() {
                let parent = (index > 0).then(|| ids[(index - 1) / 2]);
                ids.push(budget.open(parent, &limits(*cap, cap.map(|cap| cap * 3))));
            }
            let bounds = caps.iter().map(|cap| cap.map(|cap| bound(cap, Amount::default()))).collect();
            Self { budget, ids, held: Vec::new(), waiting: Vec::new(), bounds }
        }

        fn step(&mut self, op: Op) {
            match op {
                Op::Ask { account, input, output } => {
                    let input = Amount { tokens: input, money: Money(input * 2) };
                    let want = Want { input, output, least_output: 8, output_price: 3 };
                    match self.budget.reserve(self.ids[account], &want) {
                        Ok(Some(reservation)) => self.held.push(reservation),
                        Ok(None) => {
                            let (ticket, again) = self.budget.queue(self.ids[account], want);
                            self.waiting.push((ticket, again, Waiting { account, want }));
                        }
                        Err(_) => self.check_refused(account, &want),
                    }
                }
                Op::Settle { which, percent } if !self.held.is_empty() => {
                    let reservation = self.held.remove(which % self.held.len());
                    let used = part(&reservation, percent);
                    self.budget.settle(reservation, used);
                }
                Op::BreakOff { which, percent } if !self.held.is_empty() => {
                    let which = which % self.held.len();
                    let used = part(&self.held[which], percent);
                    if !self.budget.charge(&self.held[which], used) {
                        let reservation = self.held.remove(which);
                        self.budget.settle(reservation, Amount::default());
                    }
                }
                Op::GiveUp { which } if !self.waiting.is_empty() => {
                    let (ticket, ..) = self.waiting.remove(which % self.waiting.len());
                    self.budget.leave(ticket);
                }
                Op::Relimit { account, limit } => {
                    let gone = self.budget.gone(self.ids[account]);
                    self.budget.relimit(self.ids[account], &limits(limit, limit.map(|cap| cap * 3)));
                    self.bounds[account] = limit.map(|limit| bound(limit, gone));
                }
                Op::Crash => self.crash(),
                Op::Settle { .. } | Op::BreakOff { .. } | Op::GiveUp { .. } => {}
            }
            self.hear();
            self.check();
        }

        /// What is under way when a process dies counts as the most it can have used.
        fn crash(&mut self) {
            let mut next = Budget::default();
            for (id, account) in self.ids.iter().zip(&self.budget.accounts) {
                let limits = Limits { tokens: account.tokens, money: account.money, ..Limits::default() };
                next.open_again(account.parent, &limits, self.budget.gone(*id));
            }
            (self.budget, self.held, self.waiting) = (next, Vec::new(), Vec::new());
        }

        /// Lets exactly those ask again that were told to.
        fn hear(&mut self) {
            while let Some(place) =
                self.waiting.iter().position(|(_, again, _)| again.notified().now_or_never().is_some())
            {
                let (ticket, _, waiting) = &self.waiting[place];
                let waiting = *waiting;
                match self.budget.try_again(*ticket) {
                    Ok(Some(reservation)) => {
                        self.held.push(reservation);
                        self.waiting.remove(place);
                    }
                    Ok(None) => {}
                    Err(_) => {
                        self.check_refused(waiting.account, &waiting.want);
                        self.waiting.remove(place);
                    }
                }
            }
        }

        fn check(&mut self) {
            for (id, bound) in self.ids.iter().zip(&self.bounds) {
                let spent = self.budget.spent(*id);
                assert!(bound.is_none_or(|bound| spent.tokens <= bound.tokens && spent.money <= bound.money));
            }
            // Nothing stays reserved but for those who hold it.
            for id in &self.ids {
                let mut reserved = Amount::default();
                let below = |one: &&Reservation| self.budget.path(one.account).any(|above| above == *id);
                self.held.iter().filter(below).for_each(|one| reserved.add(one.amount));
                assert_eq!(self.budget.accounts[id.0].reserved, reserved);
            }
            // No wake-up was lost: whoever was not told to ask again would be told to wait.
            for (ticket, ..) in &self.waiting {
                assert_eq!(self.budget.try_again(*ticket), Ok(None));
            }
            // And the first waits for a reservation, not for nothing.
            assert!(self.waiting.is_empty() || !self.held.is_empty());
        }

        /// A refusal is only right if even the smallest such request does not fit beside what is spent.
        fn check_refused(&self, account: usize, want: &Want) {
            let smallest = want.amount(want.least_output.min(want.output));
            let refuses = |id: AccountId| {
                let account = &self.budget.accounts[id.0];
                account.tokens.is_some_and(|limit| account.spent.tokens + smallest.tokens > limit)
                    || account.money.is_some_and(|limit| account.spent.money.plus(smallest.money) > limit)
            };
            assert!(self.budget.path(self.ids[account]).any(refuses));
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(512))]
        /// Any interleaving of requests, tries that break off, settlements, cancellations, changed limits and crashes:
        /// never over a limit, refused only for what is spent, nothing reserved that is held by no request, no wake-up
        /// lost, and every request is answered in the end.
        #[test]
        fn reservations_are_hard_and_fair(
            caps in prop::collection::vec(prop::option::of(0u64..600), 7),
            ops in prop::collection::vec(op(), 1..120),
        ) {
            let mut world = World::new(&caps);
            for op in ops {
                world.step(op);
            }
            // Nothing new comes: what is under way ends, and with it every wait.
            while !world.held.is_empty() {
                world.step(Op::Settle { which: 0, percent: 50 });
            }
            prop_assert!(world.waiting.is_empty());
        }
    }
}
