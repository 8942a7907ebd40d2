//! N4: forks share their parent's bytes. Takes runs in which 1 to 32 siblings are forked in one message, gives how
//! much of each fork's first request the server had received from the parent before, byte for byte.

use decurion_engine::fork::compare;
use memchr::memmem;
use serde_json::{Value, json};

use super::up_to_messages;
use crate::faults::stand::{HANG, Stand, ended_well};
use crate::faults::{Options, Report, in_parallel};
use crate::server::Recorded;

const MOST: usize = 32;
/// How many the short form tries.
const SHORT: [usize; 3] = [1, 2, MOST];
/// The tool whose description is changed by a byte.
const CHANGED: usize = 3;

pub(super) fn row(options: &Options) -> Report {
    let mut report = Report::default();
    let sizes: Vec<usize> = if options.ci { SHORT.to_vec() } else { (1..=MOST).collect() };
    let results = in_parallel(options.width, &sizes, |siblings| forked(options, *siblings));
    let (mut shares, mut parent) = (Vec::new(), None);
    for (siblings, result) in sizes.iter().zip(results) {
        let result = result.map(|(share, body)| {
            if siblings.is_power_of_two() {
                shares.push(format!("N={siblings} {share}"));
            }
            parent = Some(body);
        });
        report.add(format_args!("{siblings} siblings"), result);
    }
    let mut named = "not tried".to_owned();
    if let Some(body) = parent {
        report.add("a changed byte", changed(&body).map(|place| named = place));
    }
    let held = report.runs - report.failures.len() as u64;
    report.figure(format!(
        "{held} of {} held; the least shared by a fork: {}; a byte of a tool's description changed: {named}",
        sizes.len() + 1,
        shares.join(", ")
    ))
}

/// One run: the share of the fork that shares least, and the parent's request before them.
fn forked(options: &Options, siblings: usize) -> Result<(String, Vec<u8>), String> {
    let stand = Stand::new(options, |_| script(siblings)).map_err(|error| error.to_string())?;
    let run = stand.run("go").run(HANG).map_err(|error| error.to_string())?;
    ended_well(&run)?;
    stand.check_left()?;
    let requests = stand.model.requests();
    // The first calls a tool, the second is answered with the delegating message.
    let parent = requests.iter().filter(|one| one.agent == "main").nth(1).ok_or("the root asked once")?;
    let forks: Vec<&Recorded> = requests.iter().filter(|one| one.agent.contains('/')).collect();
    if forks.len() != siblings {
        return Err(format!("{} requests of forks", forks.len()));
    }
    let before = up_to_messages(&parent.body)?;
    let wanted = compare(before, before).total;
    let mut least: Option<(usize, usize)> = None;
    for fork in forks {
        let identity = compare(&parent.body, &fork.body);
        if identity.shared < wanted {
            return Err(format!("{}: {wanted} bytes should be shared: {identity}", fork.agent));
        }
        let pair = (identity.shared, identity.total);
        least = least.filter(|(shared, total)| shared * pair.1 <= pair.0 * total).or(Some(pair));
    }
    let (shared, total) = least.unwrap_or_default();
    let tenths = shared * 1_000 / total.max(1);
    Ok((format!("{shared} of {total} B ({}.{} %)", tenths / 10, tenths % 10), parent.body.to_vec()))
}

fn script(siblings: usize) -> String {
    let call = |number: usize| {
        let input = json!({
            "description": format!("part {number}"), "prompt": format!("do part {number}"),
            "subagent_type": "fork", "run_in_background": true,
        });
        format!("  call Agent {input}\n")
    };
    let calls: String = (1..=siblings).map(call).collect();
    format!(
        "when agent=fork\n  say \"this is what I found\"\nwhen turn=1\n  call Bash {{\"command\": \"echo looked\"}}\n\
         when turn=2\n{calls}when\n  say \"heard\"\n"
    )
}

/// What the comparison says when one byte of a tool's description is another.
fn changed(body: &[u8]) -> Result<String, String> {
    let json: Value = serde_json::from_slice(body).map_err(|error| error.to_string())?;
    let description = json["tools"][CHANGED]["description"].to_string();
    let start = memmem::find(body, description.as_bytes()).ok_or("the description is written otherwise")?;
    let is_letter = |at: &usize| body[*at].is_ascii_lowercase() && body[*at - 1] == b' ';
    let middle = start + description.len() / 2;
    let at = (middle..start + description.len()).find(is_letter).ok_or("no letter to change")?;
    let mut other = body.to_vec();
    other[at] = if body[at] == b'x' { b'y' } else { b'x' };
    let identity = compare(body, &other);
    let wanted = format!("tools[{CHANGED}].description (byte {at})");
    if identity.shared == at && identity.parts_at.as_deref() == Some(wanted.as_str()) {
        Ok(identity.to_string())
    } else {
        Err(format!("{wanted} was changed, and it says: {identity}"))
    }
}
