//! Candidates and the selection among them.

use super::*;
use crate::inventory::Mig;

const A: &str = "GPU-aaaaaaaa-0000-0000-0000-000000000001";
const B: &str = "GPU-bbbbbbbb-0000-0000-0000-000000000002";
const C: &str = "GPU-cccccccc-0000-0000-0000-000000000003";
const M: &str = "MIG-dddddddd-0000-0000-0000-000000000004";

fn inventory() -> Inventory {
    let gpu = |index, uuid: &str, name: &str| Gpu {
        index,
        uuid: uuid.into(),
        name: name.into(),
        memory: 1 << 30,
        minor: Some(index + 4),
        mig: vec![],
    };
    let mut gpus = vec![gpu(0, A, "NVIDIA H200"), gpu(1, B, "NVIDIA A100-SXM4-40GB"), gpu(2, C, "NVIDIA H200")];
    gpus[1].mig.push(Mig { index: 0, uuid: M.into(), memory: 1 << 20 });
    Inventory { gpus }
}

fn sourced<T>(value: T) -> Option<Sourced<T>> {
    Some(Sourced { value, setting: Setting::annotation("nvidia.com/x", "y") })
}

fn list(values: &[&str]) -> Option<Sourced<Vec<String>>> {
    sourced(values.iter().map(|&value| value.to_owned()).collect())
}

/// UUIDs in the container's order.
type Uuids<'a> = Vec<&'a str>;

#[test]
fn candidates_have_the_containers_order() {
    let inventory = inventory();
    type Case<'a> = (&'a str, &'a str, &'a [u32], Option<Uuids<'a>>);
    let cases: [Case; 9] = [
        ("all", "all", &[], Some(vec![A, B, C])),
        ("by index", "2,0", &[], Some(vec![C, A])),
        ("by UUID", &format!("{B},{A}"), &[], Some(vec![B, A])),
        ("by CDI name", "nvidia.com/gpu=1", &[], Some(vec![B])),
        ("a MIG device by index", "1:0", &[], Some(vec![M])),
        ("a MIG device by UUID", M, &[], Some(vec![M])),
        ("none", "none", &[], None),
        ("device nodes only", "void", &[6, 4], Some(vec![C, A])),
        ("an unknown device node", "", &[9], None),
    ];
    for (description, given, minors, expected) in cases {
        let found = candidates(&Visible::parse(given), minors, Some(&inventory));
        let found = found.map(|all| all.iter().map(|gpu| gpu.format_uuid(gpu.uuid.unwrap())).collect::<Vec<_>>());
        assert_eq!(found.as_ref().map(|all| all.iter().map(String::as_str).collect()), expected, "{description}");
    }
    assert_eq!(candidates(&Visible::parse("all"), &[], None), None);
    let unknown = candidates(&Visible::parse(&format!("{B},1")), &[], None).unwrap();
    assert_eq!(unknown.iter().map(|gpu| gpu.uuid).collect::<Vec<_>>(), [uuid(B), None]);
}

#[test]
fn selection() {
    let inventory = inventory();
    let none = Choice::default;
    type Case<'a> = (&'a str, Choice, Result<Uuids<'a>, &'a str>);
    let cases: [Case; 11] = [
        ("no selection", none(), Ok(vec![A, B, C])),
        ("two of three", Choice { count: sourced(2), ..none() }, Ok(vec![A, B])),
        ("four of three", Choice { count: sourced(4), ..none() }, Err("only 3 GPUs match; the container may use 0 GPU-aaaaaaaa")),
        ("by type", Choice { use_type: list(&["h200"]), ..none() }, Ok(vec![A, C])),
        ("not by type", Choice { nouse_type: list(&["h200"]), ..none() }, Ok(vec![B])),
        ("one of a type", Choice { use_type: list(&["h200"]), count: sourced(1), ..none() }, Ok(vec![A])),
        ("three of a type", Choice { use_type: list(&["h200"]), count: sourced(3), ..none() }, Err("only 2 GPUs match")),
        ("no such type", Choice { use_type: list(&["b300"]), ..none() }, Err("no GPU matches")),
        ("by UUID", Choice { use_uuid: list(&[C, B]), ..none() }, Ok(vec![B, C])),
        ("not by UUID", Choice { nouse_uuid: list(&[A]), ..none() }, Ok(vec![B, C])),
        (
            "an unknown UUID",
            Choice { use_uuid: list(&["GPU-eeeeeeee-0000-0000-0000-000000000005"]), ..none() },
            Err("GPU-eeeeeeee-0000-0000-0000-000000000005 is unknown"),
        ),
    ];
    for (description, choice, expected) in cases {
        let selected = choice.select(candidates(&Visible::parse("all"), &[], Some(&inventory)));
        match (selected, expected) {
            (Ok(selected), Ok(expected)) => {
                let names: Vec<String> = selected.unwrap().into_iter().map(|gpu| gpu.name).collect();
                assert_eq!(names, expected, "{description}");
            }
            (Err(error), Err(expected)) => assert!(error.to_string().contains(expected), "{description}: {error}"),
            (selected, expected) => panic!("{description}: {selected:?}, expected {expected:?}"),
        }
    }
}

#[test]
fn selections_that_cannot_be_checked_are_refused() {
    let choice = Choice { use_uuid: list(&[A]), ..Choice::default() };
    let message = choice.select(candidates(&Visible::parse("all"), &[], None)).unwrap_err().to_string();
    assert!(message.contains("no inventory"), "{message}");
    let choice = Choice { use_type: list(&["h200"]), ..Choice::default() };
    let message = choice.select(candidates(&Visible::parse("0,1"), &[], None)).unwrap_err().to_string();
    assert!(message.contains("that of 0 is not"), "{message}");
}
