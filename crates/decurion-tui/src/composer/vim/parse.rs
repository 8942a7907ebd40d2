//! Keys as commands. Takes the keys of a command so far; gives the command, or says that more are needed.

/// The limit of a count: a larger one is a mistake, and must not block the screen.
const MOST: usize = 9_999;

/// What keys say so far.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Parsed {
    /// The beginning of a command.
    More,
    Nothing,
    /// A command and its count; none without a count.
    Command(Command, Option<usize>),
}

/// What to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Command {
    Move(Motion),
    Operate(Operator, Target),
    Insert(Place),
    Replace(char),
    /// Before the cursor, or behind it.
    Put {
        before: bool,
    },
    Join,
    Case,
    Undo,
    Repeat,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Operator {
    Delete,
    Change,
    Yank,
}

/// What an operator works on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Target {
    Motion(Motion),
    /// Whole lines, this one first.
    Lines,
    Object {
        kind: Object,
        around: bool,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Motion {
    Left,
    Right,
    Up,
    Down,
    /// To the next word; big ones end at spaces only.
    Word {
        big: bool,
    },
    Back {
        big: bool,
    },
    End {
        big: bool,
    },
    LineStart,
    /// To the first character that is no space.
    First,
    LineEnd,
    Top,
    Bottom,
    Find(Find),
    /// The last search on the line again.
    Again {
        reverse: bool,
    },
}

/// A search for a character on the line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Find {
    pub(super) letter: char,
    /// Whether it stops before it.
    pub(super) till: bool,
    pub(super) back: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Object {
    Word { big: bool },
    Quotes(char),
    Brackets(char, char),
}

/// Where text is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    Here,
    Behind,
    First,
    LineEnd,
    Below,
    Above,
}

/// Reads the keys of a command.
pub(super) fn parse(keys: &str) -> Parsed {
    let mut keys = Keys { rest: keys };
    match keys.command() {
        Some((command, count)) => Parsed::Command(command, count),
        None if keys.rest.is_empty() => Parsed::More,
        None => Parsed::Nothing,
    }
}

/// The remaining keys. A parser that returns none without taking an unknown key says that it is no command.
struct Keys<'a> {
    rest: &'a str,
}

impl Keys<'_> {
    fn next(&mut self) -> Option<char> {
        let letter = self.rest.chars().next()?;
        self.rest = &self.rest[letter.len_utf8()..];
        Some(letter)
    }

    fn peek(&self) -> Option<char> {
        self.rest.chars().next()
    }

    /// A number; a `0` alone is a motion.
    fn count(&mut self) -> Option<usize> {
        let mut count = None;
        while let Some(digit) = self.peek().and_then(|letter| letter.to_digit(10)) {
            if digit == 0 && count.is_none() {
                break;
            }
            self.next();
            count = Some((count.unwrap_or(0) * 10 + digit as usize).min(MOST));
        }
        count
    }

    fn command(&mut self) -> Option<(Command, Option<usize>)> {
        let count = self.count();
        let operator = match self.peek()? {
            'd' => Operator::Delete,
            'c' => Operator::Change,
            'y' => Operator::Yank,
            _ => return Some((self.simple()?, count)),
        };
        let letter = self.next()?;
        let second = self.count();
        let both = match (count, second) {
            (Some(first), Some(second)) => Some((first * second).min(MOST)),
            (first, second) => first.or(second),
        };
        let target = if self.peek()? == letter {
            self.next();
            Target::Lines
        } else if let around @ ('i' | 'a') = self.peek()? {
            let before = self.rest;
            self.next();
            let object = self.peek()?;
            let Some(kind) = object_of(object) else {
                self.rest = before;
                return None;
            };
            self.next();
            Target::Object { kind, around: around == 'a' }
        } else {
            Target::Motion(self.motion()?)
        };
        Some((Command::Operate(operator, target), both))
    }

    fn simple(&mut self) -> Option<Command> {
        use Operator::{Change, Delete, Yank};
        let operate = |operator, motion| Command::Operate(operator, Target::Motion(motion));
        let command = match self.peek()? {
            'x' => operate(Delete, Motion::Right),
            'X' => operate(Delete, Motion::Left),
            's' => operate(Change, Motion::Right),
            'D' => operate(Delete, Motion::LineEnd),
            'C' => operate(Change, Motion::LineEnd),
            'S' => Command::Operate(Change, Target::Lines),
            'Y' => Command::Operate(Yank, Target::Lines),
            'p' => Command::Put { before: false },
            'P' => Command::Put { before: true },
            'J' => Command::Join,
            '~' => Command::Case,
            'u' => Command::Undo,
            '.' => Command::Repeat,
            'i' => Command::Insert(Place::Here),
            'a' => Command::Insert(Place::Behind),
            'I' => Command::Insert(Place::First),
            'A' => Command::Insert(Place::LineEnd),
            'o' => Command::Insert(Place::Below),
            'O' => Command::Insert(Place::Above),
            'r' => {
                self.next();
                return self.next().map(Command::Replace);
            }
            _ => return self.motion().map(Command::Move),
        };
        self.next();
        Some(command)
    }

    fn motion(&mut self) -> Option<Motion> {
        let motion = match self.peek()? {
            'h' => Motion::Left,
            'l' | ' ' => Motion::Right,
            'j' => Motion::Down,
            'k' => Motion::Up,
            'w' => Motion::Word { big: false },
            'W' => Motion::Word { big: true },
            'b' => Motion::Back { big: false },
            'B' => Motion::Back { big: true },
            'e' => Motion::End { big: false },
            'E' => Motion::End { big: true },
            '0' => Motion::LineStart,
            '^' | '_' => Motion::First,
            '$' => Motion::LineEnd,
            'G' => Motion::Bottom,
            ';' => Motion::Again { reverse: false },
            ',' => Motion::Again { reverse: true },
            'g' => return self.after_g(),
            kind @ ('f' | 'F' | 't' | 'T') => {
                self.next();
                let letter = self.next()?;
                let (till, back) = (matches!(kind, 't' | 'T'), matches!(kind, 'F' | 'T'));
                return Some(Motion::Find(Find { letter, till, back }));
            }
            _ => return None,
        };
        self.next();
        Some(motion)
    }

    fn after_g(&mut self) -> Option<Motion> {
        let before = self.rest;
        self.next();
        if self.peek()? == 'g' {
            self.next();
            return Some(Motion::Top);
        }
        self.rest = before;
        None
    }
}

fn object_of(letter: char) -> Option<Object> {
    Some(match letter {
        'w' => Object::Word { big: false },
        'W' => Object::Word { big: true },
        '"' | '\'' | '`' => Object::Quotes(letter),
        '(' | ')' | 'b' => Object::Brackets('(', ')'),
        '[' | ']' => Object::Brackets('[', ']'),
        '{' | '}' | 'B' => Object::Brackets('{', '}'),
        '<' | '>' => Object::Brackets('<', '>'),
        _ => return None,
    })
}
