//! N3 to N5, E1 and E2: what the loopback model itself saw of agents. Takes runs of the real binary, gives whether siblings
//! wait for each other, which bytes forks share with their parent, and what an agent says first in a new process.

use decurion_engine::fork::{Identity, compare};

use super::Row;

mod again;
mod eight;
mod forks;
mod real_servers;
mod released;

/// The rows of this group.
pub fn rows() -> Vec<Row> {
    vec![
        Row { id: "N3", what: "eight children in one message", run: eight::row },
        Row { id: "N4", what: "forks share their parent's bytes", run: forks::row },
        Row {
            id: "N5",
            what: "an agent resumed in a new process, also with its record torn",
            run: again::row,
        },
        Row { id: "E1", what: "what an agent carries, given back however it ends", run: released::row },
        Row {
            id: "E2",
            what: "MCP servers from the registries, over every transport",
            run: real_servers::row,
        },
    ]
}

/// A request up to the end of its last message: in both dialects nothing but two brackets comes after it.
fn up_to_messages(body: &[u8]) -> Result<&[u8], String> {
    body.strip_suffix(b"]}").ok_or_else(|| "a request does not end with its messages".to_owned())
}

/// How many bytes two requests have that are the same from the first to the last, the cache mark left out.
fn equal(wanted: &[u8], body: &[u8]) -> Result<usize, String> {
    let identity: Identity = compare(wanted, body);
    let length = compare(body, wanted).total;
    if identity.shared == identity.total && length == identity.total {
        return Ok(length);
    }
    Err(format!("{length} bytes were wanted: {identity}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_that_is_only_the_beginning_of_another_is_not_equal() {
        let (short, long) = (br#"{"messages":[1]}"#.as_slice(), br#"{"messages":[1]}}"#.as_slice());
        assert_eq!(equal(short, short), Ok(16));
        assert!(equal(short, long).is_err());
        assert!(equal(long, short).is_err());
    }
}
