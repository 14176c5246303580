use super::*;

fn spec(profile: &Value) -> Spec {
    Spec::from(json!({ "linux": { "seccomp": profile } }))
}

fn denied(profile: &Value) -> Value {
    let mut spec = json!({ "linux": { "seccomp": profile } });
    deny_user_namespaces(&mut spec).unwrap();
    spec["linux"]["seccomp"].clone()
}

fn rule(names: &[&str], action: &str, args: Value) -> Value {
    json!({ "names": names, "action": action, "args": args })
}

/// A profile with these rules.
fn profile(default: &str, rules: &[Value]) -> Value {
    json!({ "defaultAction": default, "syscalls": rules })
}

const ALLOW: &str = "SCMP_ACT_ALLOW";
const ERRNO: &str = "SCMP_ACT_ERRNO";

/// Docker's condition on `clone`: no new namespace of any kind.
fn dockers() -> Value {
    json!([{ "index": 0, "value": 2_114_060_288, "valueTwo": 0, "op": "SCMP_CMP_MASKED_EQ" }])
}

#[test]
fn profiles_that_allow_user_namespaces() {
    let clone3 = rule(&["clone3"], ERRNO, json!(null));
    let masked = |flags| json!([masked(flags)]);
    for (description, profile, expected) in [
        ("no profile", json!(null), true),
        ("a default that allows all", profile(ALLOW, &[]), true),
        ("a default that logs", profile("SCMP_ACT_LOG", &[]), true),
        ("an unknown default", profile("SCMP_ACT_NEW", &[]), true),
        ("nothing is allowed", profile(ERRNO, &[]), false),
        ("Docker's", profile(ERRNO, &[rule(&["read"], ALLOW, json!([])), rule(&["clone"], ALLOW, dockers()), clone3.clone()]), false),
        ("Podman's", profile(ERRNO, &[rule(&["clone", "clone3", "read", "unshare"], ALLOW, json!([]))]), true),
        ("only clone is allowed", profile(ERRNO, &[rule(&["clone"], ALLOW, json!([]))]), true),
        ("only clone3 is allowed", profile(ERRNO, &[rule(&["clone3"], ALLOW, json!([]))]), true),
        (
            "a condition on another argument",
            profile(ERRNO, &[rule(&["unshare"], ALLOW, json!([{ "index": 1, "value": 0, "op": "SCMP_CMP_EQ" }]))]),
            true,
        ),
        (
            "a condition that is not a mask",
            profile(ERRNO, &[rule(&["unshare"], ALLOW, json!([{ "index": 0, "value": 9, "op": "SCMP_CMP_NE" }]))]),
            true,
        ),
        (
            "alternatives, of which one is on another argument",
            profile(
                ERRNO,
                &[rule(
                    &["unshare"],
                    ALLOW,
                    json!([super::masked(0), { "index": 1, "value": 0, "op": "SCMP_CMP_EQ" }, { "index": 1, "value": 0, "op": "SCMP_CMP_NE" }]),
                )],
            ),
            true,
        ),
        ("somebody else decides", profile(ERRNO, &[rule(&["unshare"], "SCMP_ACT_NOTIFY", json!([]))]), true),
        ("all three refused", profile(ALLOW, &[rule(&["clone", "unshare"], ERRNO, masked(NEWUSER)), clone3.clone()]), false),
        ("clone3 is missing", profile(ALLOW, &[rule(&["clone", "unshare"], ERRNO, masked(NEWUSER))]), true),
        (
            "refused together with another flag only",
            profile(
                ALLOW,
                &[
                    rule(
                        &["clone", "unshare"],
                        ERRNO,
                        json!([{ "index": 0, "value": NEWUSER | 1, "valueTwo": NEWUSER | 1, "op": "SCMP_CMP_MASKED_EQ" }]),
                    ),
                    clone3,
                ],
            ),
            true,
        ),
    ] {
        assert_eq!(allows_user_namespaces(&spec(&profile)), expected, "{description}");
        let changed = denied(&profile);
        assert!(!allows_user_namespaces(&spec(&changed)), "{description}: {changed}");
        assert_eq!(denied(&changed), changed, "{description}: a second time changes nothing");
        if !expected {
            assert_eq!(changed, profile, "{description}: stays as it is");
        }
    }
}

#[test]
fn other_calls_stay_as_they_are() {
    let read = rule(&["read"], ALLOW, json!([]));
    let changed = denied(&profile(ERRNO, &[rule(&["clone", "unshare", "clone3"], ALLOW, json!([])), read.clone()]));
    let allowed = |name| json!({ "names": [name], "action": ALLOW, "args": [masked(0)] });
    let clone3 = json!({ "names": ["clone3"], "action": ERRNO, "errnoRet": ENOSYS });
    assert_eq!(changed["syscalls"], json!([read, allowed("clone"), allowed("unshare"), clone3]));
    // A call that was allowed under a condition only is not allowed under others.
    let only = rule(&["unshare"], ALLOW, json!([{ "index": 0, "value": NEWUSER, "op": "SCMP_CMP_EQ" }]));
    assert_eq!(denied(&profile(ERRNO, &[only]))["syscalls"], json!([]));
}

/// A supervisor that decides on a call, or a log, is not left out.
#[test]
fn other_calls_keep_their_actions() {
    const NOTIFY: &str = "SCMP_ACT_NOTIFY";
    for default in [ERRNO, ALLOW] {
        let changed = denied(&profile(default, &[rule(&["unshare"], NOTIFY, json!([]))]));
        let is_kept = |rule: &Value| *rule == json!({ "names": ["unshare"], "action": NOTIFY, "args": [masked(0)] });
        assert!(changed["syscalls"].as_array().unwrap().iter().any(is_kept), "{changed}");
    }
    let conditions = json!([{ "index": 1, "value": 1, "op": "SCMP_CMP_EQ" }]);
    let changed = denied(&profile(ALLOW, &[rule(&["unshare"], NOTIFY, conditions.clone())]));
    let expected = json!({ "names": ["unshare"], "action": ERRNO, "errnoRet": EPERM, "args": conditions });
    assert!(changed["syscalls"].as_array().unwrap().contains(&expected), "{changed}");
}

#[test]
fn malformed_profiles_are_refused() {
    for spec in
        [json!([]), json!({ "linux": 1 }), json!({ "linux": { "seccomp": [] } }), json!({ "linux": { "seccomp": { "syscalls": 1 } } })]
    {
        let message = deny_user_namespaces(&mut spec.clone()).unwrap_err().to_string();
        assert!(message.contains("linux.seccomp"), "{spec}: {message}");
    }
}
