//! A3: endings that meet. Takes seeds, plays for each a session in simulated time whose agents end while their
//! parent rests, works or waits, while they are told, held or stopped, and sometimes across a crash; gives whether
//! every ending was told exactly once.

use std::sync::Arc;
use std::time::Duration;

use decurion_protocol::{
    AgentId, Block, Command, Envelope, Event, Link, Mode, OpenSession, Place as _, SessionId, Start, TaskId,
    TaskState,
};
use futures_util::StreamExt as _;
use tokio::time::Instant;

use super::agents::stage;
use super::ledger::Ledger;
use super::model::simulated;
use super::{Dice, Options, Report, in_parallel};
use crate::stage::{Plain, Stage, render, send};

/// The number of the command that asks for the end.
const FINISH: u64 = 9_999;
/// Nothing simulated here takes so long unless it hangs.
const HANG: Duration = Duration::from_secs(3_600);

pub fn row(options: &Options) -> Report {
    let mut report = Report::default();
    let tries: Vec<u64> = (0..options.count(300, 10_000)).collect();
    let results = in_parallel(options.width, &tries, |nth| one(Dice::new(options.seed, *nth)));
    let (mut endings, mut crashes) = (0, 0);
    for (nth, result) in tries.iter().zip(results) {
        report.add(
            format_args!("seed {} try {nth}", options.seed),
            result.map(|(ended, crashed)| {
                endings += ended;
                crashes += u64::from(crashed);
            }),
        );
    }
    let count = |word: &str| report.failures.iter().filter(|failure| failure.contains(word)).count();
    let (lost, double) = (count("lost"), count("double"));
    let figure = format!(
        "{} interleavings, {crashes} of them across a crash, {endings} endings: {lost} lost, {double} double, {} otherwise wrong",
        report.runs,
        report.failures.len() - lost - double
    );
    report.figure(figure)
}

fn one(mut dice: Dice) -> Result<(usize, bool), String> {
    let plan = Plan::throw(&mut dice);
    let played = simulated(play(&plan, &mut dice)).and_then(|result| result);
    played.map_err(|problem| format!("{problem}\n{:?}\n{}", plan.commands, plan.script()))
}

/// What happens in a session.
struct Plan {
    agents: usize,
    /// For each agent: its delays before each turn, whether it calls a tool, whether it is waited for.
    parts: Vec<(u64, u64, bool, bool)>,
    /// What the parent calls in its second turn, and after which time.
    calls: Vec<String>,
    delays: [u64; 3],
    /// Commands from outside, each after so many milliseconds.
    commands: Vec<(u64, Outside)>,
    /// After how many events the process is gone.
    crash: Option<usize>,
}

/// What someone outside does.
#[derive(Clone, Copy, Debug)]
enum Outside {
    Tell(u64),
    Stop(u64),
    Pause(u64),
    Continue(u64),
    Background,
    Interrupt,
    Prompt,
}

/// Few different times, so that much happens at the same instant.
fn time(dice: &mut Dice) -> u64 {
    [0, 0, 1, 1, 2, 3, 5, 8, 13][usize::try_from(dice.below(9)).unwrap_or_default()]
}

impl Plan {
    fn throw(dice: &mut Dice) -> Self {
        let agents = 1 + usize::try_from(dice.below(7)).unwrap_or_default();
        let all_behind = dice.below(2) == 0;
        let parts = (0..agents)
            .map(|_| (time(dice), time(dice), dice.below(3) == 0, !all_behind && dice.below(2) == 0))
            .collect();
        let calls = (0..dice.below(4)).map(|_| call(dice, agents)).collect();
        let mut commands: Vec<(u64, Outside)> =
            (0..dice.below(4)).map(|_| (time(dice), outside(dice))).collect();
        commands.sort_by_key(|(at, _)| *at);
        let crash = (dice.below(4) == 0).then(|| usize::try_from(dice.below(80)).unwrap_or_default());
        Self { agents, parts, calls, delays: [time(dice), time(dice), time(dice)], commands, crash }
    }

    fn script(&self) -> String {
        let mut text = String::new();
        for (number, (first, second, calls, _)) in self.parts.iter().enumerate() {
            text += &format!("when agent=worker first=\"part {number}.\" turn=1\n  delay {first}ms\n");
            text += if *calls { "  call Read {\"text\": \"x\"}\n" } else { "  say \"report\"\n" };
            text +=
                &format!("when agent=worker first=\"part {number}.\"\n  delay {second}ms\n  say \"more\"\n");
        }
        text += "when agent=main turn=1\n";
        for (number, (.., waited)) in self.parts.iter().enumerate() {
            let behind = !waited;
            text += &format!(
                "  call Agent {{\"description\": \"d{number}\", \"prompt\": \"part {number}.\", \"subagent_type\": \"worker\", \"run_in_background\": {behind}}}\n"
            );
        }
        let [second, third, later] = self.delays;
        if !self.calls.is_empty() {
            let ids = "agentId: (\\w+).*?".repeat(self.agents);
            text += &format!("when agent=main turn=2 result=/{ids}/s\n  delay {second}ms\n");
            self.calls.iter().for_each(|call| text += &format!("  call {call}\n"));
        }
        text += &format!("when agent=main turn=2\n  delay {second}ms\n  say \"rest\"\n");
        text += &format!("when agent=main turn=3\n  delay {third}ms\n  call Echo {{\"text\": \"busy\"}}\n");
        text += &format!("when\n  delay {later}ms\n  say \"heard\"\n");
        text
    }
}

fn call(dice: &mut Dice, agents: usize) -> String {
    let whom = 1 + dice.below(agents as u64);
    match dice.below(4) {
        0 => format!("TaskOutput {{\"task_id\": \"${whom}\", \"timeout\": {}}}", 1 + time(dice)),
        1 => format!("TaskOutput {{\"task_id\": \"${whom}\"}}"),
        2 => format!("SendMessage {{\"to\": \"${whom}\", \"message\": \"hurry\"}}"),
        _ => format!("TaskStop {{\"task_id\": \"${whom}\"}}"),
    }
}

fn outside(dice: &mut Dice) -> Outside {
    match dice.below(9) {
        0 | 1 => Outside::Tell(dice.next()),
        2 => Outside::Stop(dice.next()),
        3 => Outside::Background,
        4 => Outside::Interrupt,
        5 | 6 => Outside::Pause(dice.next()),
        7 => Outside::Continue(dice.next()),
        _ => Outside::Prompt,
    }
}

/// Plays the plan; gives how many endings there were, and whether there was a crash.
async fn play(plan: &Plan, dice: &mut Dice) -> Result<(usize, bool), String> {
    let script = plan.script();
    let mut first = stage(&script);
    first.tools.push(Arc::new(Plain::named("Read")));
    first.request.mode = Some(Mode::BypassPermissions);
    let mut session = Session::open(&first, first.request.clone()).await?;
    send(&session.link, 1, Command::Prompt { blocks: vec![Block::text("go")] }).await;
    let mut commands = plan.commands.clone();
    let crashed = session.follow_in_time(&mut commands, plan.crash).await?;
    if !crashed {
        let ledger = Ledger::read(&first.archive(), session.link.session)?;
        return judge(&ledger, &session).map(|ended| (ended, false));
    }
    let second = first.after_crash(&script);
    let id: SessionId = session.link.session;
    drop(session);
    let request = OpenSession { start: Start::Resume { id, at: None }, ..second.request.clone() };
    let mut session = Session::open(&second, request).await?;
    if dice.below(2) == 0 {
        send(&session.link, 1, Command::Prompt { blocks: vec![Block::text("go on")] }).await;
    }
    session.follow_in_time(&mut commands, None).await?;
    let ledger = Ledger::read(&second.archive(), id)?;
    judge(&ledger, &session).map(|ended| (ended, true)).map_err(|problem| format!("after a crash: {problem}"))
}

fn judge(ledger: &Ledger, session: &Session) -> Result<usize, String> {
    match ledger.problems().first() {
        Some(problem) => Err(format!("{problem}\n{}", render(&session.seen))),
        None => Ok(ledger.endings()),
    }
}

/// A session and what was seen of it.
struct Session {
    link: Link,
    begun: Instant,
    agents: Vec<AgentId>,
    /// Those that were held, now or before.
    held: Vec<TaskId>,
    seen: Vec<Arc<Envelope>>,
}

impl Session {
    async fn open(stage: &Stage, request: OpenSession) -> Result<Self, String> {
        let link = stage.engine().open(request).await.map_err(|error| error.to_string())?;
        Ok(Self { link, begun: Instant::now(), agents: Vec::new(), held: Vec::new(), seen: Vec::new() })
    }

    async fn follow_in_time(
        &mut self,
        commands: &mut Vec<(u64, Outside)>,
        crash: Option<usize>,
    ) -> Result<bool, String> {
        let followed = tokio::time::timeout(HANG, self.follow(commands, crash)).await;
        followed.map_err(|_| format!("hangs\n{}", render(&self.seen)))
    }

    /// Sends the commands at their times, then lets it finish; tells whether the crash came before that.
    async fn follow(&mut self, commands: &mut Vec<(u64, Outside)>, crash: Option<usize>) -> bool {
        let mut asked = false;
        loop {
            let next = commands.first().map(|(at, _)| self.begun + Duration::from_millis(*at));
            tokio::select! {
                biased;
                () = at(next) => {
                    let (_, what) = commands.remove(0);
                    self.act(what).await;
                }
                envelope = self.link.events.next() => match envelope {
                    None => return false,
                    Some(envelope) if self.saw(&envelope) => return false,
                    Some(_) if asked => self.let_go().await,
                    Some(_) => {}
                },
            }
            if crash.is_some_and(|most| self.seen.len() >= most) {
                return true;
            }
            if commands.is_empty() && !asked {
                asked = true;
                self.let_go().await;
                send(&self.link, FINISH, Command::Finish).await;
            }
        }
    }

    fn saw(&mut self, envelope: &Arc<Envelope>) -> bool {
        self.seen.push(Arc::clone(envelope));
        if let Event::TaskOpened { record } = &envelope.event
            && let Ok(agent) = record.task.as_str().parse()
        {
            self.agents.push(agent);
        }
        if let Event::TaskChanged { task, state: TaskState::Paused { .. } } = &envelope.event {
            self.held.push(task.clone());
        }
        matches!(&envelope.event, Event::Replied { request, .. } if request.0 == FINISH)
    }

    /// Whoever is held when nothing more is done from outside goes on: else nobody would ever end.
    async fn let_go(&mut self) {
        for task in std::mem::take(&mut self.held) {
            send(&self.link, 3, Command::Continue { task, tree: false }).await;
        }
    }

    async fn act(&self, what: Outside) {
        let one = |number: u64| {
            let count = self.agents.len() as u64;
            let at = usize::try_from(number.checked_rem(count)?).ok()?;
            self.agents.get(at).cloned()
        };
        let command = match what {
            Outside::Tell(number) => one(number).map(|agent| Command::Tell { agent, text: "hurry".into() }),
            Outside::Stop(number) => one(number).map(|agent| Command::Stop { task: agent.into() }),
            Outside::Pause(number) => {
                one(number).map(|agent| Command::Pause { task: agent.into(), tree: number % 2 == 0 })
            }
            Outside::Continue(number) => {
                one(number).map(|agent| Command::Continue { task: agent.into(), tree: number % 2 == 0 })
            }
            Outside::Background => Some(Command::Background { target: None }),
            Outside::Interrupt => Some(Command::Interrupt),
            Outside::Prompt => Some(Command::Prompt { blocks: vec![Block::text("and this")] }),
        };
        if let Some(command) = command {
            send(&self.link, 2, command).await;
        }
    }
}

async fn at(time: Option<Instant>) {
    match time {
        Some(time) => tokio::time::sleep_until(time).await,
        None => std::future::pending().await,
    }
}
