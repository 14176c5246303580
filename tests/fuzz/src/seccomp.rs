//! Seccomp profiles, which a pod's author or a container engine chooses, and which vgpu edits.

use arbitrary::{Arbitrary, Unstructured};
use serde_json::{Value, json};
use vgpu_oci_hook::seccomp;
use vgpu_oci_hook::spec::Spec;

/// `CLONE_NEWUSER`.
const NEWUSER: u64 = 0x1000_0000;
const CALLS: [&str; 4] = ["clone", "unshare", "clone3", "read"];
const ACTIONS: [&str; 6] =
    ["SCMP_ACT_ALLOW", "SCMP_ACT_ERRNO", "SCMP_ACT_KILL_PROCESS", "SCMP_ACT_LOG", "SCMP_ACT_NOTIFY", "SCMP_ACT_TRACE"];
const OPERATORS: [&str; 7] =
    ["SCMP_CMP_EQ", "SCMP_CMP_NE", "SCMP_CMP_LT", "SCMP_CMP_LE", "SCMP_CMP_GT", "SCMP_CMP_GE", "SCMP_CMP_MASKED_EQ"];
/// Values in conditions and in calls.
const VALUES: [u64; 7] = [0, 1, 17, NEWUSER, NEWUSER | 17, 0x7e02_0000, u64::MAX];

/// Condition on an argument.
#[derive(Arbitrary, Clone, Copy, Debug)]
struct Condition {
    index: Option<u8>,
    operator: u8,
    value: u8,
    value_two: Option<u8>,
}

/// Rule of a profile.
#[derive(Arbitrary, Debug)]
struct Rule {
    /// A bit for each of [`CALLS`].
    names: u8,
    action: u8,
    conditions: Vec<Condition>,
}

/// Profile.
#[derive(Arbitrary, Debug)]
struct Profile {
    default: u8,
    rules: Vec<Rule>,
}

fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

fn pick<T: Copy>(list: &[T], index: u8) -> T {
    list[usize::from(index) % list.len()]
}

impl Profile {
    fn json(&self) -> Value {
        let condition = |condition: &Condition| {
            let mut json = json!({ "op": pick(&OPERATORS, condition.operator), "value": pick(&VALUES, condition.value) });
            if let Some(index) = condition.index {
                json["index"] = json!(index % 3);
            }
            if let Some(value) = condition.value_two {
                json["valueTwo"] = json!(pick(&VALUES, value));
            }
            json
        };
        let rule = |rule: &Rule| {
            let names: Vec<&str> = (0..CALLS.len()).filter(|bit| rule.names >> bit & 1 == 1).map(|bit| CALLS[bit]).collect();
            let args: Vec<Value> = rule.conditions.iter().take(3).map(condition).collect();
            json!({ "names": names, "action": pick(&ACTIONS, rule.action), "args": args })
        };
        json!({ "defaultAction": pick(&ACTIONS, self.default), "syscalls": self.rules.iter().take(6).map(rule).collect::<Vec<_>>() })
    }
}

/// Set of [`CALLS`] or of [`ACTIONS`], a bit for each.
type Set = u8;

/// The actions that deny a call.
const DENYING: Set = 0b110;

/// Returns the set of one text in a list.
fn set(list: &[&str], text: &Value) -> Set {
    list.iter().position(|known| text == known).map_or(0, |place| 1 << place)
}

/// Rule as runc reads it: the calls, the action, and for each condition its argument, operator and values.
struct Meaning {
    calls: Set,
    action: Set,
    conditions: Vec<(usize, usize, u64, u64)>,
    /// Whether two conditions are on the same argument.
    are_alternatives: bool,
}

/// Returns the rules of a profile. runc leaves out those with the default action.
fn meaning(profile: &Value) -> Vec<Meaning> {
    let number = |value: &Value, key: &str| value.get(key).and_then(Value::as_u64).unwrap_or(0);
    let mut rules = Vec::new();
    for rule in list(&profile["syscalls"]).filter(|rule| rule["action"] != profile["defaultAction"]) {
        let condition = |condition: &Value| {
            let operator = OPERATORS.iter().position(|known| condition["op"] == *known).expect("a known operator");
            (number(condition, "index") as usize, operator, number(condition, "value"), number(condition, "valueTwo"))
        };
        let conditions: Vec<_> = list(&rule["args"]).map(condition).collect();
        let arguments = conditions.iter().fold(0_u8, |set, (index, ..)| set | 1 << index);
        let are_alternatives = (arguments.count_ones() as usize) < conditions.len();
        let calls = list(&rule["names"]).fold(0, |calls, name| calls | set(&CALLS, name));
        rules.push(Meaning { calls, action: set(&ACTIONS, &rule["action"]), conditions, are_alternatives });
    }
    rules
}

impl Meaning {
    /// Returns whether the rule applies: conditions on one argument are alternatives, those on several arguments are all required.
    fn applies(&self, call: Set, arguments: [u64; 3]) -> bool {
        let holds = |&(index, operator, value, two): &(usize, usize, u64, u64)| {
            let argument = arguments[index];
            [argument == value, argument != value, argument < value, argument <= value, argument > value, argument >= value]
                .get(operator)
                .map_or(argument & value == two, |holds| *holds)
        };
        let mut conditions = self.conditions.iter();
        self.calls & call != 0 && if self.are_alternatives { conditions.any(holds) } else { conditions.all(holds) }
    }
}

/// Returns the actions that may be taken on a call. Which of several the kernel takes is left open.
fn actions(rules: &[Meaning], default: Set, call: Set, arguments: [u64; 3]) -> Set {
    let found = rules.iter().filter(|rule| rule.applies(call, arguments)).fold(0, |found, rule| found | rule.action);
    if found == 0 { default } else { found }
}

/// Changes a profile so that it denies user namespaces. Asserts that it does, that all else is as strict as before, and that other calls and
/// calls that had no condition stay as they were.
pub fn seccomp(data: &[u8]) {
    let Ok(profile) = Profile::arbitrary(&mut Unstructured::new(data)) else { return };
    let before = profile.json();
    let mut spec = json!({ "linux": { "seccomp": before } });
    seccomp::deny_user_namespaces(&mut spec).expect("a profile");
    let mut again = spec.clone();
    seccomp::deny_user_namespaces(&mut again).expect("a profile");
    assert_eq!(again, spec, "a second edit changes something");
    let after = spec["linux"]["seccomp"].clone();
    assert!(!seccomp::allows_user_namespaces(&Spec::from(spec)), "{after}");
    let is_safe = !seccomp::allows_user_namespaces(&Spec::from(json!({ "linux": { "seccomp": before } })));
    let (rules, new_rules, default) = (meaning(&before), meaning(&after), set(&ACTIONS, &before["defaultAction"]));
    for (place, name) in CALLS.into_iter().enumerate() {
        let call = 1 << place;
        let has_conditions = rules.iter().any(|rule| !rule.conditions.is_empty() && rule.calls & call != 0);
        for flags in VALUES {
            for other in [0, 17] {
                let arguments = [flags, other, 0];
                let (old, new) = (actions(&rules, default, call, arguments), actions(&new_rules, default, call, arguments));
                let creates = name == "clone3" || (name != "read" && flags & NEWUSER != 0);
                let context = || format!("{name} {arguments:x?}: actions {old:b}, then {new:b}: {before} became {after}");
                assert!(!creates || new & !DENYING == 0, "a user namespace is created: {}", context());
                assert!(!is_safe || old == new, "a profile that was safe has changed: {}", context());
                assert!(new & !(old | DENYING) == 0, "a call is less restricted: {}", context());
                assert!(creates || has_conditions || old == new, "another call has changed: {}", context());
            }
        }
    }
}
