//! Hosts that a person is asked about.

use std::sync::{Arc, Mutex};

use decurion_egress::{Client, Grant, Judge, ProxyLimits, RecordedVerdict, Verdict};
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt as _, StreamExt as _};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::sync::{mpsc, oneshot};

use crate::support::*;

type Asked = (String, oneshot::Sender<Verdict>);

/// A person who answers through channels.
struct Person(Mutex<mpsc::UnboundedSender<Asked>>);

impl Judge for Person {
    fn judge(&self, client: &Client, host: &str, port: u16) -> BoxFuture<'static, Verdict> {
        // A judge may look at the client's rules, so they must not be locked meanwhile.
        assert!(!client.rules().is_open());
        let (answer, answered) = oneshot::channel();
        let question = format!("{} {host}:{port}", client.name());
        self.0.lock().unwrap().send((question, answer)).unwrap();
        answered.map(|verdict| verdict.unwrap_or(Verdict::Deny)).boxed()
    }
}

async fn world() -> (World, mpsc::UnboundedReceiver<Asked>) {
    let (sender, questions) = mpsc::unbounded_channel();
    let net = Net::new(Server::Answer, &[("new.com", &["93.184.216.34"]), ("in.com", &["10.0.0.5"])]);
    let judge = Arc::new(Person(Mutex::new(sender)));
    let world =
        World::with(net, rules(&[], &["never.com"], false), Some(judge), ProxyLimits::default()).await;
    (world, questions)
}

#[tokio::test]
async fn connections_to_one_host_ask_once_and_wait_for_the_answer() {
    let (mut world, mut questions) = world().await;
    let request = get("new.com")(world.client.token());
    let mut streams = Vec::new();
    for _ in 0..5 {
        let mut stream = world.connect().await;
        stream.write_all(&request).await.unwrap();
        streams.push(stream);
    }
    let (question, answer) = questions.recv().await.unwrap();
    assert_eq!(question, "agent new.com:80");
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
    assert!(questions.try_recv().is_err());
    assert!(world.net.received().is_empty());
    answer.send(Verdict::AllowOnce).unwrap();
    for mut stream in streams {
        let mut bytes = Vec::new();
        stream.read_to_end(&mut bytes).await.unwrap();
        assert_eq!(bytes, ANSWER);
        assert_eq!(world.record().await.verdict, RecordedVerdict::Allowed(Grant::Once));
    }
    assert!(questions.try_recv().is_err());
}

/// Sends a request and answers the question about it.
async fn ask(world: &World, questions: &mut mpsc::UnboundedReceiver<Asked>, verdict: Verdict) -> Vec<u8> {
    let request = get("new.com")(world.client.token());
    let (bytes, ()) = tokio::join!(world.exchange(&request), async {
        questions.recv().await.unwrap().1.send(verdict).unwrap();
    });
    bytes
}

#[tokio::test]
async fn once_asks_again_and_for_the_session_does_not() {
    let (world, mut questions) = world().await;
    assert!(ask(&world, &mut questions, Verdict::Deny).await.starts_with(b"HTTP/1.1 403 "));
    assert_eq!(ask(&world, &mut questions, Verdict::AllowOnce).await, ANSWER);
    assert_eq!(ask(&world, &mut questions, Verdict::AllowForSession).await, ANSWER);
    assert_eq!(world.exchange(&get("new.com")(world.client.token())).await, ANSWER);
    assert!(questions.try_recv().is_err());
    // Another client, and another port, are other questions.
    let other = world.gate.clients().add("other", rules(&[], &[], false)).unwrap();
    let cases = [
        (get("new.com")(other.token()), "other new.com:80"),
        (get("new.com:81")(world.client.token()), "agent new.com:81"),
    ];
    for (request, expected) in cases {
        let (_, question) = tokio::join!(world.exchange(&request), async {
            let (question, answer) = questions.recv().await.unwrap();
            answer.send(Verdict::Deny).unwrap();
            question
        });
        assert_eq!(question, expected);
    }
}

#[tokio::test]
async fn a_person_is_not_asked_about_denied_hosts_and_addresses() {
    let (world, mut questions) = world().await;
    for host in ["never.com", "10.0.0.5", "8.8.8.8", "[::1]"] {
        let answer = world.exchange(&get(host)(world.client.token())).await;
        assert!(answer.starts_with(b"HTTP/1.1 403 "), "{host}");
    }
    assert!(questions.try_recv().is_err());
}

#[tokio::test]
async fn an_answer_does_not_allow_a_name_to_lead_inside() {
    let (world, mut questions) = world().await;
    let request = get("in.com")(world.client.token());
    let (bytes, ()) = tokio::join!(world.exchange(&request), async {
        questions.recv().await.unwrap().1.send(Verdict::AllowForSession).unwrap();
    });
    assert!(bytes.starts_with(b"HTTP/1.1 403 "));
    assert!(world.net.received().is_empty());
}

#[tokio::test]
async fn a_host_that_is_denied_while_a_person_thinks_stays_denied() {
    let (world, mut questions) = world().await;
    let request = get("new.com")(world.client.token());
    let (bytes, ()) = tokio::join!(world.exchange(&request), async {
        let (_, answer) = questions.recv().await.unwrap();
        world.client.set_rules(rules(&[], &["new.com"], false));
        answer.send(Verdict::AllowOnce).unwrap();
    });
    assert!(bytes.starts_with(b"HTTP/1.1 403 "));
}

#[tokio::test]
async fn the_question_is_withdrawn_when_the_last_client_leaves() {
    let (mut world, mut questions) = world().await;
    let mut stream = world.connect().await;
    stream.write_all(&get("new.com")(world.client.token())).await.unwrap();
    let (_, mut answer) = questions.recv().await.unwrap();
    drop(stream);
    answer.closed().await;
    assert_eq!(world.record().await.ending, decurion_egress::Ending::ClientLeft);
    // And the next connection asks anew.
    assert_eq!(ask(&world, &mut questions, Verdict::AllowOnce).await, ANSWER);
}

#[tokio::test]
async fn a_client_cannot_bury_a_person_under_questions() {
    let (world, mut questions) = world().await;
    let mut streams = Vec::new();
    let mut answers = Vec::new();
    for index in 0..16 {
        let mut stream = world.connect().await;
        stream.write_all(&get(&format!("new{index}.com"))(world.client.token())).await.unwrap();
        answers.push(questions.recv().await.unwrap());
        streams.push(stream);
    }
    let answer = world.exchange(&get("new.com")(world.client.token())).await;
    assert!(answer.starts_with(b"HTTP/1.1 403 "));
    answers.pop().unwrap().1.send(Verdict::Deny).unwrap();
    let mut bytes = Vec::new();
    streams.pop().unwrap().read_to_end(&mut bytes).await.unwrap();
    assert_eq!(ask(&world, &mut questions, Verdict::AllowOnce).await, ANSWER);
}

#[tokio::test]
async fn a_client_that_waits_for_a_person_leaves_slots_to_others() {
    let (world, mut questions) = world().await;
    let request = get("new.com")(world.client.token());
    let mut exchanges: FuturesUnordered<_> = (0..65).map(|_| world.exchange(&request)).collect();
    // One too many: it is answered while the others wait.
    assert!(exchanges.next().await.unwrap().starts_with(b"HTTP/1.1 403 "));
    let other = world.gate.clients().add("other", rules(&["new.com"], &[], false)).unwrap();
    assert_eq!(world.exchange(&get("new.com")(other.token())).await, ANSWER);
    questions.recv().await.unwrap().1.send(Verdict::AllowOnce).unwrap();
    for _ in 0..64 {
        assert_eq!(exchanges.next().await.unwrap(), ANSWER);
    }
}
