//! The web page of `vgpu monitor` in a browser, with real containers on the simulated GPU.

mod common;

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Stdio};

use common::{Monitor, ready};
use vgpu_e2e::{Browser, Machine, Running, Way};
use vgpu_test_harness::{Bundle, Host};

/// A loader that ignores /etc/ld.so.preload, and the driver's own library, so that the process bypasses the library.
const BYPASS: &str = r"sed 's#/etc/ld.so.preload#/etc/ld.so.nothing#' /lib64/ld-linux-x86-64.so.2 > /tmp/ld && chmod 755 /tmp/ld && \
    exec /tmp/ld --library-path /usr/local/vgpu/driver:/simgpu /programs/fill --chunk 64M --max 256M --hold 600";
/// Name that is HTML.
const MARKUP: &str = "<img src=x onerror=document.title='broken'>";

/// Starts a container of a pod.
fn start(host: &Host, bundle: Bundle, name: &str, program: &[&str]) -> Running {
    let pod = [("container-type", "container"), ("container-name", name), ("sandbox-name", "job-0"), ("sandbox-namespace", "team")];
    let bundle = pod.iter().fold(bundle, |bundle, (key, value)| bundle.annotation(&format!("io.kubernetes.cri.{key}"), value));
    let mut running = Way::Wrapper.start(host, bundle.args(program));
    if !program[0].ends_with("spin") {
        let _ = running.line();
    }
    running
}

/// A process without limits, which is killed when dropped.
struct Outside(Child);

impl Outside {
    /// Starts one that holds memory.
    fn start(machine: &Machine) -> Self {
        let mut fill = machine.program("fill");
        let mut child = fill.args(["--chunk", "64M", "--max", "512M", "--hold", "600"]).stdout(Stdio::piped()).spawn().unwrap();
        let _ = BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut String::new());
        Self(child)
    }
}

impl Drop for Outside {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A container that holds memory, one that is refused some, one that computes, one that bypasses the library, and one with a hostile name.
fn containers(host: &Host, machine: &Machine) -> Vec<Running> {
    host.policy("engine = \"containerd\"");
    let limited = |memory: &str| machine.bundle().annotation("nvidia.com/gpumem", memory).annotation("nvidia.com/gpucores", "30");
    let fill = |most| ["/programs/fill", "--chunk", "16M", "--max", most, "--hold", "600"];
    vec![
        start(host, limited("2048"), "holder", &fill("256M")),
        start(host, limited("1024"), "refused", &fill("4G")),
        start(host, limited("2048"), "busy", &["/simgpu/spin", "--ns", "1000000", "--seconds", "600"]),
        start(host, machine.bundle().annotation("nvidia.com/gpumem", "1024"), "evader", &["/bin/sh", "-c", BYPASS]),
        start(host, limited("2048"), MARKUP, &fill("64M")),
    ]
}

/// Returns the violations that axe-core finds on the page. `None` without axe-core.
fn axe(browser: &mut Browser) -> Option<Vec<String>> {
    let Some(source) = std::env::var_os("VGPU_TEST_AXE").map(PathBuf::from) else {
        eprintln!("SKIPPED: axe-core (VGPU_TEST_AXE names its axe.min.js)");
        return None;
    };
    let source = std::fs::read_to_string(source).unwrap();
    let _ = browser.value(&format!("{source}; typeof axe"));
    let found = browser.value("axe.run().then(result => JSON.stringify(result.violations.map(one => [one.id, one.nodes.map(node => node.html + node.failureSummary)])))");
    let found: serde_json::Value = serde_json::from_str(found.as_str().unwrap()).unwrap();
    Some(found.as_array().unwrap().iter().map(ToString::to_string).collect())
}

/// Presses Tab until the focus leaves the page, and returns where it was: an ID, else the text.
fn order_of_focus(browser: &mut Browser) -> Vec<String> {
    let _ = browser.value("document.activeElement.blur()");
    let mut found = Vec::new();
    for _ in 0..40 {
        browser.press("Tab");
        let now = browser
            .value("document.activeElement === document.body ? '' : document.activeElement.id || document.activeElement.textContent");
        match now.as_str() {
            Some("") | None => break,
            Some(now) => found.push(now.to_owned()),
        }
    }
    found
}

#[test]
fn the_page_shows_what_happens_and_is_usable_by_all() {
    let Some((_kit, machine, host)) = ready() else { return };
    let Some(mut browser) = Browser::start() else { return };
    let monitor = Monitor::start(&host, &machine);
    let url = format!("http://{}/", monitor.address());
    browser.resize(1440, 900, false);
    browser.open(&url);
    // What happened before the monitor's first look is not shown.
    browser.wait("document.querySelectorAll('#gpus > *').length > 0");
    let _outside = Outside::start(&machine);
    let running = containers(&host, &machine);

    browser.wait("document.querySelectorAll('#containers > li').length === 5");
    browser.wait("document.querySelector('#containers').innerText.includes('774Mi of 2Gi')");
    browser.wait("document.querySelector('#events').innerText.includes('beyond its memory limit')");
    browser.wait("document.querySelector('#events').innerText.includes('bypasses the library')");
    browser.wait("document.querySelector('#events').innerText.includes('waited')");
    browser.wait("document.querySelector('#gpus .unlimited').innerText.includes('fill')");
    browser.wait("document.querySelectorAll('#containers .trace').length > 0");
    // A name is text, whatever it contains.
    let name = serde_json::to_string(&format!("team/job-0/{MARKUP}")).unwrap();
    assert_eq!(browser.value(&format!("[...document.querySelectorAll('.name button')].some(name => name.textContent === {name})")), true);
    assert_eq!(browser.value("document.querySelectorAll('img').length"), 1, "the logo");
    assert_ne!(browser.value("document.title"), "broken");

    let names: Vec<String> = ["busy", "evader", "holder", "refused"].map(|name| format!("team/job-0/{name}")).into();
    let _ =
        browser.value("document.querySelector('#sort').value = 'name', document.querySelector('#sort').dispatchEvent(new Event('change'))");
    let markup = format!("team/job-0/{MARKUP}");
    let expected = [&["#".to_owned(), "filter".to_owned(), "sort".to_owned(), markup][..], &names].concat();
    let focused: Vec<String> = order_of_focus(&mut browser).into_iter().map(|name| name.replace("Skip to containers", "#")).collect();
    assert_eq!(focused, expected, "the order of the keyboard's focus");
    let _ = browser.value("document.querySelector('.name button').focus()");
    browser.press("Enter");
    browser.wait("document.querySelector('.name button').getAttribute('aria-expanded') === 'true' && document.querySelector('.detail').offsetHeight > 100");

    for (width, is_dark) in [(1440, false), (1440, true), (390, false), (390, true)] {
        browser.resize(width, 900, is_dark);
        assert_eq!(browser.value("document.documentElement.scrollWidth <= innerWidth"), true, "nothing is cut at {width} pixels");
        if let Some(found) = axe(&mut browser) {
            assert!(found.is_empty(), "{width} pixels, dark {is_dark}: {found:#?}");
        }
        if let Some(folder) = std::env::var_os("VGPU_TEST_PICTURES") {
            browser.picture(&PathBuf::from(folder).join(format!("page-{width}-{}.png", if is_dark { "dark" } else { "light" })));
        }
    }
    // Two containers end while the page is open.
    drop(running.into_iter().skip(3).collect::<Vec<_>>());
    browser.wait("!document.querySelector('#containers').innerText.includes('job-0/evader')");
    assert_eq!(browser.errors(), [""; 0]);
    let others: Vec<String> = browser.requested().into_iter().filter(|requested| !requested.starts_with(&url)).collect();
    assert_eq!(others, [""; 0], "requests to other hosts");
}

#[test]
fn the_page_asks_for_the_token() {
    let Some((_kit, machine, host)) = ready() else { return };
    let Some(mut browser) = Browser::start() else { return };
    let token = host.policy_file().with_file_name("token");
    std::fs::write(&token, "0123456789abcdef\n").unwrap();
    let monitor = Monitor::start_with(&host, &machine, &["--token-file", token.to_str().unwrap()]);
    assert!(monitor.get("/page/state.json").starts_with("HTTP/1.1 401"));
    browser.open(&format!("http://{}/", monitor.address()));
    let enter = |browser: &mut Browser, token: &str| {
        browser.wait("!document.querySelector('#login').hidden");
        let _ =
            browser.value(&format!("document.querySelector('#token').value = '{token}', document.querySelector('#login').requestSubmit()"));
    };
    enter(&mut browser, "another one");
    browser.wait("document.querySelector('#error').innerText.includes('token')");
    enter(&mut browser, "0123456789abcdef");
    browser.wait("document.querySelector('#gpus').innerText.includes('GPU 0')");
}
