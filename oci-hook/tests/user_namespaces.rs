//! User namespaces, in which a process can hide the library's mounts from itself. `privileged = "refuse"` keeps limited containers from
//! creating any.

mod common;

use common::{Way, host, runtimes};
use serde_json::{Value, json};
use vgpu_test_harness::{Bundle, Host};

/// Tries to create a user namespace in each way, to hide the library in one, and to fork.
const SCRIPT: &str = r#"
    perl -e 'print "unshare\n" if syscall(272, 0x10000000) == 0'
    perl -e 'my $child = syscall(56, 0x10000011, 0, 0, 0, 0); exit if $child == 0; print "clone\n" if $child > 0'
    perl -e 'my $args = pack("Q8", 0x10000000, 0, 0, 0, 17, 0, 0, 0); my $child = syscall(435, $args, 64); exit if $child == 0;
             print "clone3\n" if $child > 0'
    unshare -Urm sh -c 'mount --bind /dev/null /etc/ld.so.preload && test -s /etc/ld.so.preload || echo hidden' 2>&-
    perl -e 'my $child = fork; if ($child == 0) { print "forked\n" } else { wait }'"#;

/// A bundle with a profile.
fn bundle(profile: &Value) -> Bundle {
    let mut bundle = Bundle::of_host().annotation("nvidia.com/gpumem", "1024").shell(SCRIPT);
    bundle.spec["linux"]["seccomp"] = profile.clone();
    bundle
}

/// Returns what a process in a container with this profile can do.
fn seen(host: &Host, way: Way, profile: &Value) -> String {
    way.run(host, bundle(profile)).ok()
}

/// No profile, one that refuses one harmless call, and one that refuses all that are not listed, as Podman's and CRI-O's do.
fn profiles() -> Vec<Value> {
    // The kernel's list of calls, by the names of their functions.
    let names = std::fs::read_to_string("/proc/kallsyms").unwrap_or_default();
    let calls = names.lines().filter_map(|line| line.split_whitespace().nth(2)?.strip_prefix("__x64_sys_").map(str::to_owned));
    let mut calls: Vec<String> = calls.filter(|name| !name.starts_with("new") || name == "newfstatat").collect();
    calls.extend(["stat", "lstat", "fstat", "uname", "newfstatat", "arch_prctl", "sendfile", "mmap"].map(str::to_owned));
    calls.sort_unstable();
    calls.dedup();
    let no_swap = json!({ "names": ["swapon"], "action": "SCMP_ACT_ERRNO" });
    let mut profiles = vec![Value::Null, json!({ "defaultAction": "SCMP_ACT_ALLOW", "syscalls": [no_swap] })];
    if calls.len() > 100 {
        profiles.push(json!({ "defaultAction": "SCMP_ACT_ERRNO", "syscalls": [{ "names": calls, "action": "SCMP_ACT_ALLOW" }] }));
    } else {
        eprintln!("SKIPPED: a profile that lists all calls, which need CONFIG_KALLSYMS");
    }
    profiles
}

#[test]
fn limited_containers_create_none_if_the_policy_says_so() {
    for runtime in runtimes() {
        let lax = host(runtime);
        let before = seen(&lax, Way::Wrapper, &Value::Null);
        if before != "unshare\nclone\nclone3\nhidden\nforked\n" {
            eprintln!("SKIPPED: this machine does not allow user namespaces: {before:?}");
            return;
        }
        let strict = host(runtime);
        strict.policy("privileged = \"refuse\"");
        for profile in profiles() {
            assert_eq!(seen(&strict, Way::Wrapper, &profile), "forked\n", "{runtime:?}: {profile}");
        }
        let unlimited = Bundle::of_host().shell(SCRIPT);
        assert_eq!(strict.run(&unlimited).ok(), before, "{runtime:?}: other containers are not changed");
    }
}

#[test]
fn hooks_refuse_what_they_cannot_change() {
    for runtime in runtimes() {
        let host = host(runtime);
        host.policy("privileged = \"refuse\"");
        let refused = Way::Hooks.run(&host, bundle(&Value::Null));
        let said = format!("{}{}", refused.log, refused.stderr);
        assert!(!refused.status.success() && said.contains("linux.seccomp"), "{runtime:?}: {refused:#?}");
        let flag = |value: u64| json!([{ "index": 0, "value": 0x1000_0000, "valueTwo": value, "op": "SCMP_CMP_MASKED_EQ" }]);
        let profile = json!({ "defaultAction": "SCMP_ACT_ALLOW", "syscalls": [
            { "names": ["clone", "unshare"], "action": "SCMP_ACT_ERRNO", "args": flag(0x1000_0000) },
            { "names": ["clone3"], "action": "SCMP_ACT_ERRNO", "errnoRet": 38 },
        ] });
        assert_eq!(seen(&host, Way::Hooks, &profile), "forked\n", "{runtime:?}");
    }
}
