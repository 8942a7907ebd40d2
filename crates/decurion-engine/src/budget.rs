//! Hard budgets. Takes what a request may cost at most, gives leave or refusal before it is sent, and is
//! told the true cost after: what was spent never exceeds a limit.
//!
//! Accounts form a tree shaped like the agents': a reservation is made on every account from the asking one
//! up to the root, or on none.

use decurion_protocol::{Limits, Money};

/// One account of the tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AccountId(usize);

/// What is set aside for one request until its true cost is known. Give it back with [`Budget::settle`].
#[derive(Debug, PartialEq, Eq)]
#[must_use = "a reservation that is never settled blocks its amount for good"]
pub struct Reservation {
    account: AccountId,
    amount: Amount,
}

/// Tokens and money together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Amount {
    /// Tokens of all classes.
    pub tokens: u64,
    /// Money.
    pub money: Money,
}

/// What is left, and whose account has the least.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Left<T> {
    /// So much.
    pub amount: T,
    /// There.
    pub account: AccountId,
}

/// Which limit a reservation would break.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Exhausted {
    /// The token limit.
    #[error("the token budget is used up")]
    Tokens,
    /// The money limit.
    #[error("the money budget is used up")]
    Money,
}

impl Exhausted {
    /// The word for it in an outcome.
    pub fn word(self) -> &'static str {
        match self {
            Self::Tokens => "tokens",
            Self::Money => "money",
        }
    }
}

/// The tree of accounts.
#[derive(Clone, Debug, Default)]
pub struct Budget {
    accounts: Vec<Account>,
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

    /// Sets an amount aside on the account and everything above it, or says which limit stands against it.
    pub fn reserve(&mut self, account: AccountId, amount: Amount) -> Result<Reservation, Exhausted> {
        for id in self.path(account) {
            self.accounts[id.0].has_room(amount)?;
        }
        for id in self.path(account) {
            self.accounts[id.0].reserved.add(amount);
        }
        Ok(Reservation { account, amount })
    }

    /// Ends a reservation with what was truly used.
    #[allow(clippy::needless_pass_by_value)] // a reservation is settled once, so it is consumed
    pub fn settle(&mut self, reservation: Reservation, used: Amount) {
        for id in self.path(reservation.account) {
            let account = &mut self.accounts[id.0];
            account.reserved.take(reservation.amount);
            account.spent.add(used);
        }
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
        self.path(account).into_iter().filter_map(left).min_by(|one, other| one.amount.cmp(&other.amount))
    }

    /// What the account and those below it have used or set aside.
    pub fn gone(&self, account: AccountId) -> Amount {
        self.accounts[account.0].gone()
    }

    /// Gives an account these limits from now on.
    pub fn relimit(&mut self, account: AccountId, limits: &Limits) {
        let account = &mut self.accounts[account.0];
        (account.tokens, account.money) = (limits.tokens, limits.money);
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

    fn path(&self, account: AccountId) -> Vec<AccountId> {
        let mut path = vec![account];
        while let Some(parent) = path.last().and_then(|id| self.accounts[id.0].parent) {
            path.push(parent);
        }
        path
    }
}

impl Account {
    /// What it has used or set aside.
    fn gone(&self) -> Amount {
        let mut gone = self.spent;
        gone.add(self.reserved);
        gone
    }

    fn has_room(&self, amount: Amount) -> Result<(), Exhausted> {
        let tokens = self.spent.tokens + self.reserved.tokens + amount.tokens;
        let money = self.spent.money.plus(self.reserved.money).plus(amount.money);
        if self.tokens.is_some_and(|limit| tokens > limit) {
            Err(Exhausted::Tokens)
        } else if self.money.is_some_and(|limit| money > limit) {
            Err(Exhausted::Money)
        } else {
            Ok(())
        }
    }
}

impl Amount {
    /// Adds another.
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
    use proptest::prelude::*;

    fn limits(tokens: Option<u64>, money: Option<u64>) -> Limits {
        Limits { tokens, money: money.map(Money), ..Limits::default() }
    }

    #[test]
    fn a_child_cannot_spend_what_its_parent_does_not_have() {
        let mut budget = Budget::default();
        let root = budget.open(None, &limits(None, Some(100)));
        let child = budget.open(Some(root), &limits(None, Some(1_000)));
        let first = budget.reserve(child, Amount { tokens: 1, money: Money(90) }).unwrap();
        assert_eq!(budget.reserve(child, Amount { tokens: 1, money: Money(11) }), Err(Exhausted::Money));
        assert_eq!(budget.money_left(child), Some(Money(10)));
        budget.settle(first, Amount { tokens: 1, money: Money(40) });
        assert_eq!(budget.money_left(root), Some(Money(60)));
        assert_eq!(budget.spent(root).money, Money(40));
    }

    proptest! {
        /// Any interleaving of reservations and settlements, as long as nobody uses more than was reserved.
        #[test]
        fn spent_never_exceeds_a_limit(
            caps in prop::collection::vec(0u64..500, 1..6),
            steps in prop::collection::vec((0usize..6, 0u64..120, 0u64..=100), 1..200),
        ) {
            let mut budget = Budget::default();
            let mut ids = Vec::new();
            for (index, cap) in caps.iter().enumerate() {
                let parent = (index > 0).then(|| ids[(index - 1) / 2]);
                ids.push(budget.open(parent, &limits(Some(*cap), None)));
            }
            let mut held = Vec::new();
            for (who, amount, share) in steps {
                let account = ids[who % ids.len()];
                match budget.reserve(account, Amount { tokens: amount, money: Money(0) }) {
                    Ok(reservation) => held.push((reservation, amount * share / 100)),
                    Err(refused) => prop_assert_eq!(refused, Exhausted::Tokens),
                }
                if held.len() > 3 {
                    let (reservation, used) = held.remove(0);
                    budget.settle(reservation, Amount { tokens: used, money: Money(0) });
                }
                for (id, cap) in ids.iter().zip(&caps) {
                    prop_assert!(budget.spent(*id).tokens <= *cap);
                }
            }
        }
    }
}
