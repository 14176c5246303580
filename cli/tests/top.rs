//! `vgpu top` in terminals of two sizes, while containers start and stop.

mod common;

use std::fs::File;
use std::io::{Read, Write};
use std::num::NonZero;
use std::process::{Child, Stdio};
use std::sync::{Arc, Mutex};

use common::{ready, vgpu, wait_for};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};
use vgpu_e2e::{Machine, Running, Way};
use vgpu_test_harness::Host;

/// Terminal that runs `vgpu top`.
struct Terminal {
    child: Child,
    keys: File,
    screen: Arc<Mutex<vt100::Parser>>,
}

fn size(columns: u16, rows: u16) -> Winsize {
    Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 }
}

/// Returns a size that is not zero.
fn some(cells: u16) -> NonZero<u16> {
    NonZero::new(cells).unwrap()
}

impl Terminal {
    fn start(host: &Host, machine: &Machine, columns: u16, rows: u16) -> Self {
        let keys = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        grantpt(&keys).unwrap();
        unlockpt(&keys).unwrap();
        tcsetwinsize(&keys, size(columns, rows)).unwrap();
        let name = ptsname(&keys, Vec::new()).unwrap();
        let side = || File::options().read(true).write(true).open(name.to_str().unwrap()).unwrap();
        let mut command = vgpu(host, machine);
        command.args(["top", "--sort", "name"]).env("TERM", "xterm-256color");
        let child = command.stdin(Stdio::from(side())).stdout(Stdio::from(side())).stderr(Stdio::from(side())).spawn().unwrap();
        let keys = File::from(keys);
        let screen = Arc::new(Mutex::new(vt100::Parser::new(some(rows), some(columns), 0)));
        let (to, mut from) = (Arc::clone(&screen), keys.try_clone().unwrap());
        std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            // Fails once the other side is closed.
            while let Ok(count @ 1..) = from.read(&mut bytes) {
                to.lock().unwrap().process(&bytes[..count]);
            }
        });
        Self { child, keys, screen }
    }

    fn resize(&self, columns: u16, rows: u16) {
        self.screen.lock().unwrap().screen_mut().set_size(some(rows), some(columns));
        tcsetwinsize(&self.keys, size(columns, rows)).unwrap();
    }

    fn press(&mut self, keys: &str) {
        self.keys.write_all(keys.as_bytes()).unwrap();
    }

    fn text(&self) -> String {
        self.screen.lock().unwrap().screen().contents()
    }

    /// Waits for a screen that satisfies a condition.
    fn shows(&self, what: &str, condition: impl Fn(&str) -> bool) -> String {
        let mut last = String::new();
        let found = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            wait_for(what, || {
                last = self.text();
                Some(()).filter(|()| condition(&last))
            });
        }));
        assert!(found.is_ok(), "{what}:\n{last}");
        last
    }
}

/// Starts a container of a pod, with containerd's annotations.
fn container(host: &Host, machine: &Machine, name: &str, program: &[&str]) -> Running {
    host.policy("engine = \"containerd\"");
    let bundle = machine.bundle().annotation("nvidia.com/gpumem", "2048").annotation("nvidia.com/gpucores", "30");
    let pod = [("container-type", "container"), ("container-name", name), ("sandbox-name", "training-0"), ("sandbox-namespace", "team")];
    let bundle = pod.iter().fold(bundle, |bundle, (key, value)| bundle.annotation(&format!("io.kubernetes.cri.{key}"), value));
    let mut running = Way::Wrapper.start(host, bundle.args(program));
    let _ = running.line();
    running
}

#[test]
fn top_ends_when_its_terminal_is_gone() {
    let Some((_kit, machine, host)) = ready() else { return };
    // In one case only the input is gone, whose other side is another program's.
    for is_output_gone in [true, false] {
        let terminal = || {
            // The program must not inherit this side.
            let side = File::from(openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap());
            grantpt(&side).unwrap();
            unlockpt(&side).unwrap();
            let name = ptsname(&side, Vec::new()).unwrap();
            (side, File::options().read(true).write(true).open(name.to_str().unwrap()).unwrap())
        };
        let ((input, inner_input), (mut output, inner_output)) = (terminal(), terminal());
        std::fs::create_dir_all(host.state_dir().join("containers")).unwrap();
        let mut command = vgpu(&host, &machine);
        command.arg("top").env("TERM", "xterm-256color").stderr(Stdio::null());
        let mut child = command.stdin(Stdio::from(inner_input)).stdout(Stdio::from(inner_output)).spawn().unwrap();
        // It has begun to draw.
        assert_ne!(output.read(&mut [0; 64]).unwrap(), 0);
        drop((input, command));
        let kept = (!is_output_gone).then_some(output);
        let status = wait_for("the end of vgpu top", || child.try_wait().unwrap());
        assert!(status.success(), "{status}");
        drop(kept);
    }
}

#[test]
fn top_follows_containers_that_start_and_stop() {
    let Some((_kit, machine, host)) = ready() else { return };
    let fill = |take| ["/programs/fill", "--chunk", "16M", "--max", take, "--hold", "600"];
    let holders = [container(&host, &machine, "alpha", &fill("256M")), container(&host, &machine, "beta", &fill("1G"))];
    let busy = container(&host, &machine, "gamma", &["/programs/spin", "--ns", "1000000", "--seconds", "600", "--wait"]);
    let mut top = Terminal::start(&host, &machine, 80, 24);
    // A name must be on one line only: a line that is too long would wrap.
    let has = |text: &str, name: &str| text.lines().filter(|line| line.contains(name)).count() == 1;
    let text = top.shows("three containers", |text| {
        ["3 containers", "  training-0/alpha ", "  training-0/beta ", "  training-0/gamma "].iter().all(|name| has(text, name))
    });
    println!("{text}");
    assert!(text.lines().next().unwrap().starts_with("vgpu top"), "{text}");
    assert!(["774Mi/2Gi", "1.5Gi/2Gi", "/30%"].iter().all(|figure| text.contains(figure)), "{text}");
    assert!(text.lines().count() == 24 && text.lines().last().unwrap().starts_with("q quit"), "{text}");

    top.resize(200, 50);
    // There is room for full names.
    let names = ["alpha", "beta", "gamma"].map(|name| format!("  team/training-0/{name} "));
    let text = top.shows("a wide terminal", |text| names.iter().all(|name| has(text, name)) && text.lines().count() == 50);
    println!("{text}");

    let [first, second] = holders;
    drop(first);
    let text = top.shows("two containers", |text| text.contains("2 containers"));
    assert!(!text.contains("alpha"), "{text}");
    let third = container(&host, &machine, "alpha", &fill("512M"));
    top.shows("three containers again", |text| text.contains("3 containers") && text.contains("alpha"));

    top.press("?");
    top.shows("the help", |text| text.contains("clear the filter"));
    top.press("?");
    top.shows("the list again", |text| text.contains("CONTAINER"));
    // The mouse, as a terminal reports it: a press of the left button in the first row below the titles.
    top.press("\x1b[<0;5;4M\x1b[<0;5;4m");
    top.press("\r");
    // Its processes are in the first sample that was taken after they had begun to use the GPU.
    let text = top.shows("the details of a container", |text| {
        ["throttled", "COMMAND", "root", "/programs/fill --chunk 16M"].iter().all(|part| text.contains(part))
    });
    assert!(text.contains("priority 1") && text.contains("limit 2Gi"), "{text}");
    // The container stops while its details are shown.
    drop((second, third, busy));
    top.shows("no containers", |text| text.contains("no containers"));
    top.press("q");
    assert!(top.child.wait().unwrap().success());
    // The last output may not have arrived yet.
    wait_for("the terminal is restored", || {
        let screen = top.screen.lock().unwrap();
        Some(()).filter(|()| !screen.screen().alternate_screen() && !screen.screen().hide_cursor())
    });
}
