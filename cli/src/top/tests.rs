use super::*;
use crate::origins::Origin;
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use ratatui::crossterm::event::{MouseButton, MouseEventKind};
use vgpu_monitor::account::Moves;
use vgpu_monitor::snapshot::{ContainerState, Gpu, GpuProcess, Share, Snapshot, Unlimited};
use view::{Key, Target};

fn uuid(number: u32) -> String {
    format!("GPU-0123456{number}-89ab-cdef-0123-456789abcdef")
}

/// Returns the key of a container's row.
fn of(place: &str, gpu: u32) -> Key {
    Key::Share { place: place.to_owned(), uuid: uuid(gpu) }
}

/// Returns a share of two processes, of MiB and percent. It waits where it uses all of its time.
fn share(gpu: u32, held: u64, limit: u64, cores: Option<u32>, used: f64) -> Share {
    let member = |pid| GpuProcess {
        pid: Some(pid),
        inner_pid: pid - 40_000,
        name: "python3".to_owned(),
        charged: Some(held << 19),
        overhead: 518 << 20,
        held: Some(held << 19),
        is_listed: true,
        ..GpuProcess::default()
    };
    Share {
        uuid: uuid(gpu),
        memory_limit: Some(limit << 20),
        cores,
        charged: held << 20,
        overhead: if held > 0 { 1036 << 20 } else { 0 },
        held: Some(held << 20),
        utilization: Some(used),
        observed: Some(used),
        throttled: Some(if cores.is_some_and(|cores| used >= f64::from(cores)) { 60.0 } else { 0.0 }),
        used_ns: 61_500_000_000,
        throttled_ns: 12_000_000_000,
        processes: if held > 0 { vec![member(40_017), member(40_018)] } else { Vec::new() },
        ..Share::default()
    }
}

fn container(id: &str, name: [&str; 3], gpus: Vec<Share>) -> ContainerState {
    let part = |text: &str| (!text.is_empty()).then(|| text.to_owned());
    let [namespace, pod, container] = name.map(part);
    ContainerState {
        // As long as the IDs of engines.
        id: format!("{id:0<64}"),
        dir_name: id.to_owned(),
        namespace,
        pod,
        container,
        created: 1000,
        priority: 1,
        gpus,
        ..ContainerState::default()
    }
}

/// A process without limits, which does not exist on the machine of the test.
fn stranger() -> Unlimited {
    Unlimited { pid: 4_194_304, name: "render".to_owned(), held: Some(51_000 << 20), observed: Some(42) }
}

/// Three containers on two GPUs, after `samples` samples. The GPUs' figures are the sums of their containers' and the process's.
fn demo(samples: u32) -> View {
    let mut view = View::new(Sort::Memory, String::new());
    view.origins.source = |pid, _| match pid {
        40_017 => Origin { user: "ana".to_owned(), command: "python3 train.py --epochs 90".to_owned() },
        40_018 => Origin { user: "ana".to_owned(), command: "python3 train.py --worker 1".to_owned() },
        _ => Origin { user: "ben".to_owned(), command: "render --scene city.blend".to_owned() },
    };
    for sample in 0..samples {
        let wave = f64::from(sample % 8) / 7.0;
        let gpu = |index, used: u64, utilization| Gpu {
            index,
            uuid: uuid(index),
            name: "NVIDIA H200".to_owned(),
            memory: 143_771 << 20,
            memory_used: Some(used << 20),
            utilization: Some(utilization),
            processes_known: true,
            unlimited: (index == 1).then(stranger).into_iter().collect(),
        };
        let trainer = Share { first_refusal: Some(4400.0), refused: 3, ..share(0, 7_800, 8_192, Some(30), 30.0 * wave) };
        let containers = vec![
            container("c0ffee0123456789", ["team-a", "trainer-7d9c5b6f4-x2x7k", "train"], vec![trainer]),
            container(
                "badcafe123456789",
                ["", "", "notebook"],
                vec![share(0, 12_288, 16_384, Some(50), 12.0), share(1, 0, 16_384, Some(50), 0.0)],
            ),
            container("0123456789abcdef", ["", "", ""], vec![Share { throttled: None, ..share(1, 20_480, 24_576, None, 55.0) }]),
        ];
        let gpus = vec![gpu(0, 7_800 + 12_288, (30.0 * wave) as u32 + 12), gpu(1, 20_480 + 51_000, 55 + 42)];
        view.update(Snapshot { time: 5000.0, nvml_error: None, gpus, containers });
    }
    view
}

fn drawn(view: &View, width: u16, height: u16) -> String {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|frame| frame.render_widget(Paragraph::new(draw::screen(view, width, height)), frame.area())).unwrap();
    let buffer = terminal.backend().buffer();
    let row = |y| (0..width).map(|x| buffer[(x, y)].symbol()).collect::<String>().trim_end().to_owned() + "\n";
    (0..height).map(row).collect()
}

/// Compares text with a file in `snapshots/`, which VGPU_WRITE_SNAPSHOTS overwrites first.
fn compare(name: &str, text: &str) {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src/top/snapshots").join(name);
    if std::env::var_os("VGPU_WRITE_SNAPSHOTS").is_some() {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, text).unwrap();
    }
    assert_eq!(text, std::fs::read_to_string(&path).unwrap(), "{name}:\n{text}");
}

fn press(view: &mut View, keys: &[KeyCode]) {
    keys.iter().for_each(|code| view.handle_key(KeyEvent::new(*code, KeyModifiers::NONE)));
}

#[test]
fn screens_of_two_sizes_match_their_snapshots() {
    let mut view = demo(40);
    for (name, width, height) in [("80x24.txt", 80, 24), ("200x50.txt", 200, 50)] {
        let text = drawn(&view, width, height);
        assert!(text.lines().all(|line| line.chars().count() <= usize::from(width)));
        compare(name, &text);
    }
    press(&mut view, &[KeyCode::Down, KeyCode::Enter]);
    assert_eq!(view.detail, Some(of("c0ffee0123456789", 0)), "the first row is selected from the start");
    compare("detail-80x24.txt", &drawn(&view, 80, 24));
    compare("detail-200x50.txt", &drawn(&view, 200, 50));
}

#[test]
fn details_have_the_moves_of_a_container_that_has_moved() {
    let mut view = demo(1);
    press(&mut view, &[KeyCode::Down, KeyCode::Enter]);
    assert!(!drawn(&view, 80, 24).contains("moves out"));
    let mut snapshot = view.snapshot.clone();
    let share = &mut snapshot.containers[0].gpus[0];
    share.moves_out = Moves { count: 12, bytes: 36 << 30, took_ns: 4_100_000_000 };
    share.moves_in = Moves { count: 11, bytes: 33 << 30, took_ns: 3_900_000_000 };
    view.update(snapshot);
    let text = drawn(&view, 80, 24);
    assert!(text.contains("\n           moves out 12 (36Gi in 4.1 s)   moves in 11 (33Gi in 3.9 s)\n"), "{text}");
}

#[test]
fn keys_sort_filter_select_and_quit() {
    let mut view = demo(1);
    let first = |view: &View| view.rows(&uuid(0))[0].container.name();
    assert_eq!(first(&view), "notebook", "sorted by memory");
    press(&mut view, &[KeyCode::Char('s'), KeyCode::Char('s'), KeyCode::Char('s')]);
    assert_eq!((view.sort, first(&view).as_str()), (Sort::Name, "notebook"));
    press(&mut view, &[KeyCode::Char('/'), KeyCode::Char('T'), KeyCode::Char('r'), KeyCode::Char('q'), KeyCode::Backspace, KeyCode::Enter]);
    assert_eq!((view.filter.as_str(), view.rows(&uuid(0)).len(), view.rows(&uuid(1)).len()), ("Tr", 1, 0));
    press(&mut view, &[KeyCode::Enter]);
    assert_eq!(view.detail, Some(of("c0ffee0123456789", 0)));
    press(&mut view, &[KeyCode::Esc, KeyCode::Esc]);
    assert!(view.detail.is_none() && view.filter.is_empty() && !view.is_done());
    press(&mut view, &[KeyCode::Char('q')]);
    assert!(view.is_done());
}

#[test]
fn containers_appear_and_disappear() {
    let mut view = demo(3);
    press(&mut view, &[KeyCode::Down, KeyCode::Enter]);
    let mut snapshot = view.snapshot.clone();
    snapshot.containers.clear();
    view.update(snapshot);
    assert!(view.detail.is_none() && view.selected == Some(Key::Process { pid: stranger().pid, uuid: uuid(1) }));
    assert!(drawn(&view, 80, 24).contains("no containers"));
    press(&mut view, &[KeyCode::Down, KeyCode::Up, KeyCode::Enter]);
    view.update(Snapshot { nvml_error: Some("no driver".to_owned()), ..Snapshot::default() });
    assert!(drawn(&view, 80, 24).contains("NVML: no driver"));
    for (width, height) in [(1, 1), (0, 0), (20, 3), (500, 2)] {
        let _ = draw::screen(&demo(2), width, height);
    }
}

#[test]
fn the_cursor_stays_visible_with_many_containers() {
    let mut view = View::new(Sort::Name, String::new());
    let many =
        (0..60).map(|number| container(&format!("id{number:02}"), ["", "", &format!("c{number:02}")], vec![share(0, 1, 2, None, 1.0)]));
    view.update(Snapshot { containers: many.collect(), ..Snapshot::default() });
    assert!(drawn(&view, 80, 24).contains(" more)"));
    press(&mut view, &[KeyCode::Down; 55]);
    let text = drawn(&view, 80, 24);
    assert!(text.contains("c54") && !text.contains("c10"), "{text}");
}

/// Returns what is at the place of a text on a screen of 100x30.
fn target(view: &View, text: &str) -> Option<Target> {
    let screen = drawn(view, 100, 30);
    let (y, line) = screen.lines().enumerate().find(|(_, line)| line.contains(text)).unwrap_or_else(|| panic!("{text}: {screen}"));
    let x = line.split(text).next().unwrap().chars().count();
    draw::target_at(view, (100, 30), (x as u16, y as u16))
}

#[test]
fn the_mouse_selects_opens_sorts_and_scrolls() {
    let mut view = demo(3);
    let click = |view: &mut View, text: &str| {
        let target = target(view, text);
        view.handle_mouse(MouseEventKind::Down(MouseButton::Left), target);
    };
    click(&mut view, "train");
    assert_eq!((view.selected.clone(), view.detail.clone()), (Some(of("c0ffee0123456789", 0)), None));
    click(&mut view, "train");
    assert_eq!(view.detail, Some(of("c0ffee0123456789", 0)));
    view.handle_mouse(MouseEventKind::Down(MouseButton::Right), None);
    assert_eq!(view.detail, None);
    for (title, sort, is_reversed) in [
        ("CONTAINER", Sort::Name, false),
        ("TIME", Sort::Time, false),
        ("WAIT", Sort::Throttled, false),
        ("MEMORY", Sort::Memory, false),
        ("MEMORY", Sort::Memory, true),
    ] {
        click(&mut view, title);
        assert_eq!((view.sort, view.is_reversed), (sort, is_reversed), "{title}");
    }
    assert_eq!(target(&view, "HISTORY"), None);
    assert_eq!(target(&view, "q quit"), None);
    click(&mut view, "render");
    assert_eq!(view.selected, Some(Key::Process { pid: stranger().pid, uuid: uuid(1) }));
    view.handle_mouse(MouseEventKind::ScrollUp, None);
    assert!(matches!(&view.selected, Some(Key::Share { .. })));
}

#[test]
fn processes_without_limits_have_rows_and_details() {
    let mut view = demo(2);
    let text = drawn(&view, 80, 24);
    assert!(text.contains("WITHOUT LIMITS") && text.contains("49.8Gi   42%  render"), "{text}");
    press(&mut view, &[KeyCode::End, KeyCode::Enter]);
    let text = drawn(&view, 80, 24);
    assert!(text.contains("belongs to no container with limits") && text.contains("NVML 49.8Gi"), "{text}");
    // It ends while its details are shown.
    let mut snapshot = view.snapshot.clone();
    snapshot.gpus[1].unlimited.clear();
    view.update(snapshot);
    assert_eq!(view.detail, None);
    let mut view = demo(2);
    press(&mut view, &[KeyCode::Char('u')]);
    assert!(!drawn(&view, 80, 24).contains("WITHOUT LIMITS"));
}

#[test]
fn help_reversal_and_filters_follow_the_keys() {
    let mut view = demo(2);
    press(&mut view, &[KeyCode::Char('?')]);
    let text = drawn(&view, 80, 24);
    assert!(text.contains("clear the filter") && text.contains("damaged account") && !text.contains("more)"), "{text}");
    press(&mut view, &[KeyCode::Char('x'), KeyCode::Char('r')]);
    assert!(!drawn(&view, 80, 24).contains("clear the filter"));
    assert_eq!(view.rows(&uuid(0))[0].container.name(), "team-a/trainer-7d9c5b6f4-x2x7k/train", "least memory first");
    // The characters inside of an ID select nothing.
    for (filter, expected) in [("0ffee", 0), ("c0ffee", 1), ("trainer", 1), ("23", 0), ("0123", 0)] {
        view.filter = filter.to_owned();
        assert_eq!(view.rows(&uuid(0)).len(), expected, "{filter}");
    }
    view.filter = "0123".to_owned();
    assert_eq!(view.rows(&uuid(1)).len(), 1, "an unnamed container, by the beginning of its ID");
    view.snapshot.containers[2].engine_name = Some("Renderer".to_owned());
    view.filter = "render".to_owned();
    assert_eq!(view.rows(&uuid(1)).len(), 1, "the name that an engine gave it");
}

/// Pods of one owner have containers of one name.
#[test]
fn rows_of_pods_tell_them_apart() {
    let mut view = View::new(Sort::Name, String::new());
    let pods = ["inference-server-7d9c5b6f4-x2x7k", "inference-server-7d9c5b6f4-q8m4t", "web-0"];
    let main = |pod: &str| container(pod, ["team-a", pod, "main"], vec![share(0, 2_000, 4_000, None, 1.0)]);
    let sidecar = container("sidecar", ["team-a", pods[0], "a-container-of-a-long-name"], vec![share(0, 2_000, 4_000, None, 1.0)]);
    view.update(Snapshot { containers: pods.map(main).into_iter().chain([sidecar]).collect(), ..Snapshot::default() });
    let text = drawn(&view, 80, 24);
    for name in ["…c5b6f4-x2x7k/main ", "…c5b6f4-q8m4t/main ", "  team-a/web-0/main ", "…x2x7k/a-containe…"] {
        assert!(text.contains(name), "{name}: {text}");
    }
    assert!(drawn(&view, 200, 24).contains("team-a/inference-server-7d9c5b6f4-q8m4t/main "));
}

#[test]
fn a_container_above_its_limit_is_marked() {
    let mut view = View::new(Sort::Name, String::new());
    let of_one = |held| container("one", ["", "", "one"], vec![share(0, held, 4_000, None, 1.0)]);
    for (held, mark) in [(4_000, "\n  one "), (4_001, "\n! one ")] {
        view.update(Snapshot { containers: vec![of_one(held)], ..Snapshot::default() });
        let text = drawn(&view, 80, 24);
        assert!(text.contains(mark), "{text}");
    }
}

/// Names and GPUs are whole from 80 columns on: in the row, or below the list for the selected one.
#[test]
fn names_are_not_cut() {
    let name = "GPU 0 NVIDIA RTX PRO 6000 Blackwell Server Edition";
    for width in [80, 120, 200] {
        let mut view = demo(2);
        let mut snapshot = view.snapshot.clone();
        snapshot.gpus[0].name = name.strip_prefix("GPU 0 ").unwrap().to_owned();
        view.update(snapshot);
        let text = drawn(&view, width, 24);
        assert!(text.contains("RTX PRO 6000 Blackwell Server Edition"), "{text}");
        assert!(text.lines().all(|line| line.chars().count() <= usize::from(width)), "{text}");
        press(&mut view, &[KeyCode::Down]);
        assert!(drawn(&view, width, 24).contains("team-a/trainer-7d9c5b6f4-x2x7k/train  c0ffee012345"), "the selected one");
    }
}
