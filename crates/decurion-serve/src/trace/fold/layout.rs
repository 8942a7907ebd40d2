//! The tracks of a fold. Takes what was folded, gives each agent its place in the tree, each call and command
//! a track where nothing else is, and each arrow both its ends.

use std::collections::HashMap;

use decurion_protocol::AgentId;

use super::{AgentRow, Arrow, ArrowEnd, Strip, TimelineFold, inside};
use crate::trace::{Flow, Lane, Moment};

/// The deepest path that is written out; a record of ours is never near it.
const MOST_DEPTH: usize = 64;

impl TimelineFold {
    /// Gives calls and commands their tracks: the first that is free. Gives how many each agent has of both.
    pub(super) fn lay_out(&mut self) -> Vec<(usize, usize)> {
        let mut order: Vec<usize> = (0..self.strips.len()).collect();
        order.sort_by_key(|strip| self.strips[*strip].from);
        let mut busy: Vec<(Vec<u64>, Vec<u64>)> = vec![(vec![0], Vec::new()); self.rows.len()];
        for strip in order {
            let Strip { row, from, to, is_shell, .. } = self.strips[strip];
            let ends = if is_shell { &mut busy[row].1 } else { &mut busy[row].0 };
            let track = ends.iter().position(|end| *end <= from).unwrap_or(ends.len());
            match ends.get_mut(track) {
                Some(end) => *end = to,
                None => ends.push(to),
            }
            self.strips[strip].track = track;
        }
        for strip in &mut self.strips {
            if strip.is_shell {
                strip.track += busy[strip.row].0.len();
            }
            for span in &strip.spans {
                self.spans[*span].track = strip.track;
            }
        }
        busy.into_iter().map(|(calls, shells)| (calls.len(), shells.len())).collect()
    }

    /// The arrows with both their ends. One that was never received ends where its reader was last seen.
    pub(super) fn arrows(&self, place: &[usize]) -> Vec<Flow> {
        let moment = |end: ArrowEnd| Moment {
            lane: place[end.row],
            track: end.strip.map_or(0, |strip| self.strips[strip].track),
            at: end.at,
        };
        let flow = |arrow: &Arrow| {
            let unread = || {
                let row = self.places.get(&arrow.reader).copied().unwrap_or(0);
                let seen = self.rows[row].last.map_or(0, |(began, rested)| inside(began, rested));
                ArrowEnd { row, strip: None, at: if seen >= arrow.from.at { seen } else { self.now } }
            };
            let to = arrow.to.unwrap_or_else(unread);
            Flow {
                kind: arrow.kind,
                from: moment(arrow.from),
                to: Moment { at: to.at.max(arrow.from.at), ..moment(to) },
                unfinished: arrow.to.is_none(),
            }
        };
        self.flows.iter().map(flow).collect()
    }

    pub(super) fn lane(&self, row: usize, depth: usize, (tracks, shells): (usize, usize)) -> Lane {
        let state = &self.rows[row];
        let mut path = Vec::new();
        let mut next = state.agent.as_ref();
        while let Some(agent) = next
            && path.len() < MOST_DEPTH
        {
            path.push(agent.as_str());
            let above = self.places.get(&Some(agent.clone())).map(|place| &self.rows[*place]);
            next = above.and_then(|row| row.parent.as_ref());
        }
        path.push("main");
        path.reverse();
        Lane {
            agent: state.agent.clone(),
            path: path.join("/"),
            kind: state.kind.clone(),
            description: state.description.clone(),
            depth,
            outcome: state.outcome,
            tracks,
            shells,
        }
    }
}

/// The order of agents, with their depths: each before its children. An agent that cannot be reached from the root,
/// because the record of its start is lost or wrong, comes last.
pub(super) fn order(rows: &[AgentRow], places: &HashMap<Option<AgentId>, usize>) -> Vec<(usize, usize)> {
    let mut below: Vec<Vec<usize>> = vec![Vec::new(); rows.len()];
    for (index, row) in rows.iter().enumerate().filter(|(_, row)| row.agent.is_some()) {
        if let Some(parent) = places.get(&row.parent) {
            below[*parent].push(index);
        }
    }
    let mut order = Vec::with_capacity(rows.len());
    let mut seen = vec![false; rows.len()];
    let root = places.get(&None).copied();
    for start in root.into_iter().chain(0..rows.len()) {
        let mut open = vec![(start, usize::from(Some(start) != root))];
        while let Some((row, depth)) = open.pop() {
            if !std::mem::replace(&mut seen[row], true) {
                order.push((row, depth));
                open.extend(below[row].iter().rev().map(|child| (*child, depth + 1)));
            }
        }
    }
    order
}
