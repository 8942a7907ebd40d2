//! N3: eight children in one message. Takes runs whose replies the model holds until it has seen what must come
//! without them, gives whether anyone waited for a sibling, and the order in which requests began and ended.

use crate::faults::agents::general_call;
use crate::faults::stand::{HANG, Stand, ended_well};
use crate::faults::{Options, Report};
use crate::proc::Running;
use crate::server::{Mark, Settings};

const CHILDREN: usize = 8;
/// Each child reads two files and reports.
const REQUESTS: usize = 3;
/// The limit of the third run.
const FEW: usize = 3;

pub(super) fn row(options: &Options) -> Report {
    let mut report = Report::default();
    let (mut at_once, mut alone, mut peak) = (0, 0, 0);
    let (mut free, mut limited) = (String::new(), String::new());
    for nth in 0..options.count(1, 20) {
        let result = together(options).map(|count| at_once = count);
        report.add(format_args!("all held until all are there, try {nth}"), result);
        let result = each_alone(options).map(|(count, course)| (alone, free) = (count, course));
        report.add(format_args!("one goes on, the others are held, try {nth}"), result);
        let result = few_at_once(options).map(|(most, course)| (peak, limited) = (most, course));
        report.add(format_args!("max_running {FEW}, try {nth}"), result);
    }
    let completed = if peak > 0 { CHILDREN } else { 0 };
    let figure = format!(
        "{at_once} of {CHILDREN} in flight at once; each went on alone while {} were held: {alone}/{CHILDREN}; \
         max_running {FEW}: peak {peak}, {completed} completed. Order (m the root, + begins, - ends): {free}; with \
         max_running {FEW}: {limited}",
        CHILDREN - 1
    );
    report.figure(figure)
}

/// The gate opens only when the first requests of all wait; gives how many there were at once.
fn together(options: &Options) -> Result<usize, String> {
    let stand = stand(options, |settings| settings.gate = u32::try_from(CHILDREN).ok())?;
    let running = stand.run("go").start().map_err(|error| error.to_string())?;
    let course = ended(&stand, running)?;
    let most = peak(&course);
    if most == CHILDREN { Ok(most) } else { Err(format!("{most} were in flight at once")) }
}

/// Each child in turn gets all replies but its last while all others wait for one; gives how many came through.
fn each_alone(options: &Options) -> Result<(usize, String), String> {
    let stand = stand(options, |settings| settings.hold = true)?;
    let running = stand.run("go").start().map_err(|error| error.to_string())?;
    let mut arrived = 1 + CHILDREN;
    wait(&stand, arrived)?;
    let children = children(&stand.model.course());
    for (nth, child) in children.iter().enumerate() {
        let_through(&stand, child, REQUESTS - 1);
        arrived += REQUESTS - 1;
        wait(&stand, arrived).map_err(|problem| format!("child {} alone: {problem}", nth + 1))?;
        let course = stand.model.course();
        for (place, other) in children.iter().enumerate() {
            let wanted = if place <= nth { (REQUESTS, REQUESTS - 1) } else { (1, 0) };
            let counts = counts(&course, other);
            if counts != wanted {
                return Err(format!("child {}: {counts:?} began and ended, not {wanted:?}", place + 1));
            }
        }
    }
    // Nobody's end waits for that of one that was called before it.
    children.iter().rev().for_each(|child| let_through(&stand, child, 1));
    let course = ended(&stand, running)?;
    Ok((children.len(), written(&course)))
}

/// With room for a few the next begins when one has ended, while the others are still held; gives the peak.
fn few_at_once(options: &Options) -> Result<(usize, String), String> {
    let stand = stand(options, |settings| settings.hold = true)?;
    let limit = format!(r#"{{"agents":{{"maxRunning":{FEW}}}}}"#);
    let program = stand.run("go").args(["--settings", &limit]);
    let running = program.start().map_err(|error| error.to_string())?;
    let mut arrived = 1 + FEW;
    wait(&stand, arrived)?;
    for nth in 0..CHILDREN {
        let known = children(&stand.model.course());
        let child = known.get(nth).ok_or_else(|| format!("only {} children began", known.len()))?;
        let_through(&stand, child, REQUESTS);
        let next = nth + FEW;
        arrived += REQUESTS - 1 + usize::from(next < CHILDREN);
        wait(&stand, arrived).map_err(|problem| format!("after child {}: {problem}", nth + 1))?;
        let course = stand.model.course();
        if next < CHILDREN {
            check_succession(&course, child, next)?;
        }
        let held = children(&course).into_iter().skip(nth + 1);
        if let Some(other) = held.into_iter().find(|other| counts(&course, other) != (1, 0)) {
            return Err(format!("{other} was not held: {:?}", counts(&course, &other)));
        }
    }
    let course = ended(&stand, running)?;
    let most = peak(&course);
    if most == FEW { Ok((most, written(&course))) } else { Err(format!("{most} were in flight at once")) }
}

/// That a child began after this one's last reply.
fn check_succession(course: &[Mark], before: &str, next: usize) -> Result<(), String> {
    let ended = course.iter().rposition(|mark| matches!(mark, Mark::Ends(agent) if agent == before));
    let known = children(course);
    let next = known.get(next).ok_or_else(|| format!("child {} has not begun", next + 1))?;
    let begun = course.iter().position(|mark| matches!(mark, Mark::Begins(agent) if agent == next));
    if counts(course, before) == (REQUESTS, REQUESTS) && ended < begun {
        return Ok(());
    }
    Err(format!("{next} began before {before} had ended: {}", written(course)))
}

fn stand(options: &Options, set: impl FnOnce(&mut Settings)) -> Result<Stand, String> {
    let stand = Stand::with(options, |work| script(&work.to_string_lossy()), set);
    let stand = stand.map_err(|error| error.to_string())?;
    for name in ["one", "two"] {
        std::fs::write(stand.home.work().join(name), name).map_err(|error| error.to_string())?;
    }
    Ok(stand)
}

fn script(work: &str) -> String {
    let calls: String = (1..=CHILDREN).map(|number| general_call(&format!("part {number}"), false)).collect();
    let read =
        |name: &str| format!("  call Read {}\n", serde_json::json!({"file_path": format!("{work}/{name}")}));
    format!(
        "when agent=main turn=1\n{calls}when agent=main\n  say \"all have reported\"\nwhen turn=1\n{}when turn=2\n{}\
         when\n  say \"this is what I found\"\n",
        read("one"),
        read("two")
    )
}

/// Waits until so many have come. There may be more: the root goes on as soon as its last child has ended.
fn wait(stand: &Stand, count: usize) -> Result<(), String> {
    let arrived = stand.model.wait_for_requests(count, HANG).len();
    if arrived >= count { Ok(()) } else { Err(format!("{arrived} requests arrived, not {count}")) }
}

fn let_through(stand: &Stand, child: &str, replies: usize) {
    stand.model.let_through(child, u32::try_from(replies).unwrap_or(u32::MAX));
}

/// The end of a run in which all children were answered to their end and no request was refused: the order.
fn ended(stand: &Stand, running: Running) -> Result<Vec<Mark>, String> {
    let run = running.finish(HANG).map_err(|error| error.to_string())?;
    let course = stand.model.course();
    ended_well(&run).map_err(|problem| format!("{problem}; {}", written(&course)))?;
    stand.check_left()?;
    let known = children(&course);
    let complete = known.iter().filter(|child| counts(&course, child) == (REQUESTS, REQUESTS)).count();
    if (known.len(), complete) == (CHILDREN, CHILDREN) {
        return Ok(course);
    }
    Err(format!("{complete} of {} children completed: {}", known.len(), written(&course)))
}

/// The paths of all below the root, in the order in which they began.
fn children(course: &[Mark]) -> Vec<String> {
    let mut known: Vec<String> = Vec::new();
    for mark in course {
        if let Mark::Begins(agent) = mark
            && agent.contains('/')
            && !known.contains(agent)
        {
            known.push(agent.clone());
        }
    }
    known
}

/// How many requests of an agent began and how many ended.
fn counts(course: &[Mark], path: &str) -> (usize, usize) {
    let begun = course.iter().filter(|mark| matches!(mark, Mark::Begins(agent) if agent == path)).count();
    let ended = course.iter().filter(|mark| matches!(mark, Mark::Ends(agent) if agent == path)).count();
    (begun, ended)
}

/// The most requests of children that were under way at once.
fn peak(course: &[Mark]) -> usize {
    let (mut now, mut most) = (0_usize, 0);
    for mark in course {
        match mark {
            Mark::Begins(agent) if agent.contains('/') => now += 1,
            Mark::Ends(agent) if agent.contains('/') => now = now.saturating_sub(1),
            Mark::Begins(_) | Mark::Ends(_) => {}
        }
        most = most.max(now);
    }
    most
}

/// The order for people: `1:m+ 2:m- 3:1+`, each entry with its number in the order.
fn written(course: &[Mark]) -> String {
    let known = children(course);
    let name = |path: &String| match known.iter().position(|child| child == path) {
        Some(place) => (place + 1).to_string(),
        None => "m".to_owned(),
    };
    let entry = |(at, mark): (usize, &Mark)| match mark {
        Mark::Begins(agent) => format!("{}:{}+", at + 1, name(agent)),
        Mark::Ends(agent) => format!("{}:{}-", at + 1, name(agent)),
    };
    course.iter().enumerate().map(entry).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_order_is_read_and_written() {
        let [begins, ends] = [Mark::Begins, Mark::Ends];
        let [root, one, two] = ["main", "main/a", "main/b"].map(str::to_owned);
        let course = [
            begins(root.clone()),
            ends(root),
            begins(two.clone()),
            begins(one.clone()),
            ends(two.clone()),
            begins(two.clone()),
        ];
        assert_eq!(written(&course), "1:m+ 2:m- 3:1+ 4:2+ 5:1- 6:1+");
        assert_eq!((peak(&course), counts(&course, &two), counts(&course, &one)), (2, (2, 1), (1, 0)));
        assert_eq!(children(&course), [two, one]);
    }
}
