use std::collections::HashMap;
use std::time::Duration;

use serde_json::Value;

use super::history::{Counters, SLOTS, Series};
use super::*;
use crate::metrics::Tally;
use crate::snapshot::{ContainerState, Gpu, Share, Snapshot, Unlimited};

const GIB: u64 = 1 << 30;

fn at(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn container(name: &str, share: Share) -> ContainerState {
    ContainerState { id: name.to_owned(), dir_name: name.to_owned(), created: 1, gpus: vec![share], ..ContainerState::default() }
}

fn share() -> Share {
    Share { uuid: "GPU-1".to_owned(), memory_limit: Some(4 * GIB), cores: Some(30), charged: GIB, ..Share::default() }
}

fn snapshot(time: f64, containers: Vec<ContainerState>) -> Snapshot {
    let unlimited = vec![Unlimited { pid: 7, name: "<b>".to_owned(), held: Some(GIB), observed: Some(3) }];
    let gpu =
        Gpu { uuid: "GPU-1".to_owned(), memory: 80 * GIB, memory_used: Some(9 * GIB), utilization: Some(50), unlimited, ..Gpu::default() };
    Snapshot { time, gpus: vec![gpu], containers, ..Snapshot::default() }
}

/// State of one container after each of its shares, one second apart from 100 s on; the tallies of the last look.
fn after(shares: Vec<Share>) -> State {
    let mut state = State::new("node", 5);
    for (second, share) in (100..).zip(shares) {
        state.update(at(second), &snapshot(second as f64, vec![container("a", share)]), &HashMap::new());
    }
    state
}

fn json(state: &State, since: &str) -> Value {
    serde_json::from_str(&state.json(&format!("since={since}"), at(200), 200.0)).unwrap()
}

#[test]
fn a_page_gets_what_changed_since_it_asked() {
    let mut state = State::new("node", 5);
    let both = |charged| vec![container("a", share()), container("b", Share { charged, ..share() })];
    assert_eq!(json(&state, "")["age"], Value::Null, "there was no sample yet");
    state.update(at(100), &snapshot(100.0, both(1)), &HashMap::new());
    let first = json(&state, "");
    assert_eq!((first["shares"]["rows"].as_array().unwrap().len(), &first["version"]), (2, &Value::from("5.1")));
    assert_eq!((&first["gpus"]["rows"][0]["unlimited"][0]["name"], &first["age"]), (&Value::from("<b>"), &Value::from(100.0)));
    state.update(at(101), &snapshot(101.0, both(2)), &HashMap::new());
    let next = json(&state, "5.1");
    assert_eq!((next["shares"]["rows"].as_array().unwrap().len(), &next["shares"]["rows"][0]["name"]), (1, &Value::from("b")));
    assert!(next["shares"]["ids"].is_null() && next["gpus"]["rows"].as_array().unwrap().is_empty(), "{next}");
    state.update(at(102), &snapshot(102.0, both(2)[1..].to_vec()), &HashMap::new());
    let last = json(&state, "5.2");
    assert_eq!((last["shares"]["rows"].as_array().unwrap().len(), last["shares"]["ids"].as_array().unwrap().len()), (0, 1), "one is gone");
    for since in ["", "4.2", "5.9", "5.x", "x", "5", "5.-1"] {
        assert_eq!(json(&state, since)["shares"]["rows"].as_array().unwrap().len(), 1, "{since:?}: everything");
    }
}

#[test]
fn refusals_and_waits_are_events_once_they_happen() {
    let counted = |refused, throttled_ns| Share { refused, throttled_ns, ..share() };
    let old = after(vec![counted(5, 3_000_000_000)]);
    assert_eq!(json(&old, "")["events"]["rows"], Value::Array(Vec::new()), "when that was is not known");
    let state = after(vec![counted(5, 0), counted(7, 2_000_000_000), counted(8, 2_500_000_000)]);
    let events = json(&state, "")["events"]["rows"].clone();
    let event = |kind: &str| events.as_array().unwrap().iter().find(|event| event["kind"] == kind).unwrap().clone();
    let refused = event("refused");
    let found = (&refused["count"], &refused["first"], &refused["last"], &refused["name"]);
    assert_eq!(found, (&Value::from(3), &Value::from(101.0), &Value::from(102.0), &Value::from("a")));
    assert_eq!(event("held_back")["count"], 2, "seconds");
    // Of a container that is younger than the state, everything counts.
    let mut state = State::new("node", 5);
    let young = ContainerState { created: 100, ..container("a", counted(5, 0)) };
    state.update(at(100), &snapshot(100.5, vec![young]), &HashMap::new());
    assert_eq!(json(&state, "")["events"]["rows"][0]["count"], 5);
}

#[test]
fn violations_are_events_and_marks_and_are_forgotten_after_an_hour() {
    let mut state = after(vec![share()]);
    let tally = Tally { found: [0, 2, 0], lasting: [0, 1, 0], ended: 1 };
    let tallies = HashMap::from([("a".to_owned(), tally)]);
    state.update(at(101), &snapshot(101.0, vec![container("a", share())]), &tallies);
    let found = json(&state, "");
    assert_eq!(found["shares"]["rows"][0]["violations"], serde_json::json!(["bypass"]));
    let kinds: Vec<&str> = found["events"]["rows"].as_array().unwrap().iter().filter_map(|event| event["kind"].as_str()).collect();
    assert_eq!(kinds, ["bypass", "ended"]);
    state.update(at(150), &snapshot(150.0, vec![container("a", share())]), &tallies);
    assert_eq!(json(&state, "")["events"]["rows"][0]["last"], 150.0, "the bypass goes on");
    state.update(at(3800), &snapshot(3800.0, Vec::new()), &HashMap::new());
    assert_eq!(json(&state, "")["events"]["rows"], Value::Array(Vec::new()));
}

#[test]
fn hostile_names_and_numbers_of_containers_are_bounded() {
    let mut state = State::new("node", 5);
    let many = |refused: u64| {
        let one = |number: u64| container(&format!("c{number}"), Share { refused: refused * number, ..share() });
        let mut all: Vec<ContainerState> = (0..12_000).map(one).collect();
        all[0].container = Some("\"</script>\u{202e}".repeat(100_000));
        all[0].damaged = Some("x".repeat(1 << 20));
        all
    };
    state.update(at(100), &snapshot(100.0, many(0)), &HashMap::new());
    state.update(at(110), &snapshot(110.0, many(1)), &HashMap::new());
    let found = json(&state, "");
    assert_eq!((found["shares"]["rows"].as_array().unwrap().len(), &found["left_out"]), (10_000, &Value::from(2000)));
    assert!(found["shares"]["rows"][0]["name"].as_str().unwrap().chars().count() <= 201);
    assert!(found["events"]["rows"].as_array().unwrap().len() <= 200 && found.to_string().len() < 8 << 20);
    let all: String = (0..20_000).map(|id| format!("{id},")).collect();
    let histories: Value = serde_json::from_str(&state.history_json(&format!("points=999999&ids={all}"))).unwrap();
    assert!(histories["of"].as_object().unwrap().len() <= 100);
    for query in ["", "ids=", "ids=x,-1,99999999999999999999", "points=0&ids=1", "points=x"] {
        assert!(serde_json::from_str::<Value>(&state.history_json(query)).is_ok(), "{query}");
    }
}

#[test]
fn histories_have_memory_and_time_of_each_slot() {
    let mut series = Series::new(at(0), Counters { is_charged: true, ..Counters::default() });
    let counters = |seconds: u64, percent: u64| Counters {
        used_ns: seconds * percent * 10_000_000,
        over_ns: seconds * 1_000_000_000,
        is_charged: true,
        waited_ns: seconds * 500_000_000,
    };
    for second in [3, 10, 15, 20, 50] {
        series.record(at(second), second, counters(second, 30));
    }
    let points = series.last(at(50), 6, 6);
    let memory: Vec<_> = points.iter().map(|point| point.map(|point| point.memory)).collect();
    assert_eq!(memory, [None, Some(10), Some(20), None, None, Some(50)], "slots without a sample are unknown");
    let newest = points[5].unwrap();
    assert!((newest.time.unwrap() - 30.0).abs() < 0.01 && (newest.waits - 50.0).abs() < 0.01, "{newest:?}");
    let means: Vec<_> = series.last(at(50), 6, 3).iter().map(|point| point.map(|point| point.memory)).collect();
    assert_eq!(means, [Some(10), Some(20), Some(50)]);
    // Later, the points have moved to the left.
    assert_eq!(series.last(at(70), 6, 6)[3].unwrap().memory, 50);
    // NVML's time is not compared with charged time, and a counter that falls is no time.
    series.record(at(60), 1, Counters { is_charged: false, ..counters(60, 90) });
    series.record(at(70), 1, Counters { is_charged: false, ..counters(70, 1) });
    let times: Vec<_> = series.last(at(70), 2, 2).iter().map(|point| point.unwrap().time).collect();
    assert_eq!(times, [None, Some(0.0)]);
    for slot in 0..2 * SLOTS as u64 {
        series.record(at(1000 + slot * 10), slot, Counters::default());
    }
    assert_eq!((series.span(), series.last(at(1000), SLOTS, SLOTS).len()), (SLOTS, SLOTS));
}
