//! Arbitrary pods and quantities, as anybody who may create a pod can send them: a panic would abort the webhook.

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};
use vgpu_dra::quantity;
use vgpu_dra::webhook::{pod, review::Webhook};

/// Keys that the webhook reads, and some that it does not.
const KEYS: &[&str] = &[
    "metadata",
    "annotations",
    "labels",
    "name",
    "namespace",
    "spec",
    "containers",
    "initContainers",
    "resources",
    "limits",
    "requests",
    "claims",
    "env",
    "restartPolicy",
    "resourceClaims",
    "runtimeClassName",
    "nvidia.com/gpu",
    "nvidia.com/gpumem",
    "nvidia.com/gpumem-percentage",
    "nvidia.com/gpucores",
    "nvidia.com/priority",
    "nvidia.com/use-gputype",
    "nvidia.com/nouse-gpuuuid",
    "nvidia.com/numa-bind",
    "hami.io/gpu-scheduler-policy",
    "hami.io/webhook",
    "cpu",
    "",
];
/// Texts that are special to what the webhook reads.
const TEXTS: &[&str] =
    &["", "1", "-1", "1.5", "99999999999999999999", "1e18", "E", "Ki", "é", "\u{202e}", "Always", "a,b", "\"]", "true", "../x", "vgpu"];
/// Iterations of each test.
const ROUNDS: u32 = 6_000;

/// Pseudo-random numbers (xorshift64) with a fixed seed, so that a failure repeats.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 16) as usize % limit
    }

    fn pick<'a>(&mut self, from: &[&'a str]) -> &'a str {
        from[self.below(from.len())]
    }

    /// Returns any JSON value, at most `depth` levels deep.
    fn value(&mut self, depth: usize) -> Value {
        match self.below(if depth == 0 { 6 } else { 9 }) {
            0 => Value::Null,
            1 => json!(self.below(2) == 0),
            2 => json!(self.below(200)),
            3 => json!([i64::MIN as f64, -1.0, 0.5, 1e300][self.below(4)]),
            4 => json!(u64::MAX - self.below(3) as u64),
            5 => json!(self.pick(TEXTS)),
            6 => (0..self.below(3)).map(|_| self.value(depth - 1)).collect(),
            _ => Value::Object((0..self.below(4)).map(|_| (self.pick(KEYS).to_owned(), self.value(depth - 1))).collect::<Map<_, _>>()),
        }
    }

    /// Replaces, adds or removes values at random places of `value`.
    fn damage(&mut self, value: &mut Value) {
        let stays = self.below(6) == 0;
        match value {
            Value::Object(map) if !map.is_empty() && !stays => {
                let index = self.below(map.len());
                self.damage(map.values_mut().nth(index).unwrap());
            }
            Value::Array(list) if !list.is_empty() && !stays => {
                let index = self.below(list.len());
                self.damage(&mut list[index]);
            }
            Value::Object(map) if self.below(2) == 0 => drop(map.insert(self.pick(KEYS).to_owned(), self.value(2))),
            other => *other = self.value(3),
        }
    }

    /// Returns a pod that was well-formed before up to four of its values were replaced.
    fn pod(&mut self) -> Value {
        let container = json!({ "name": "a", "env": [], "resources": { "limits": { "nvidia.com/gpu": 1, "nvidia.com/gpumem-percentage": 50 }, "requests": { "nvidia.com/gpucores": "30" } } });
        let mut pod = json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": { "name": "p", "labels": {}, "annotations": { "nvidia.com/use-gputype": "A100", "nvidia.com/numa-bind": "true" } },
            "spec": { "containers": [container, container], "initContainers": [container], "resourceClaims": [], "runtimeClassName": null },
        });
        for _ in 0..self.below(5) {
            self.damage(&mut pod);
        }
        pod
    }

    fn text(&mut self) -> String {
        let parts = ["0", "1", "9", ".", "-", "+", "e", "E", "Ki", "Ei", "m", "n", "k", "é", " ", "999999999999999999"];
        (0..self.below(7)).map(|_| self.pick(&parts)).collect()
    }
}

#[test]
fn no_pod_makes_the_webhook_panic() {
    let mut random = Random(0x5eed_0001);
    let (mut changed, mut refused) = (0, 0);
    for round in 0..ROUNDS / 3 {
        let pod = if round % 4 == 0 { random.value(6) } else { random.pod() };
        let sizes: BTreeSet<u64> = (0..random.below(11)).map(|_| [0, 1, 24 << 30, u64::MAX][random.below(4)]).collect();
        let _ = pod::needs_gpu_sizes(&pod);
        match pod::mutate(&pod, &sizes, Some("vgpu")) {
            Ok(None) => {}
            Ok(Some(mutated)) => {
                changed += 1;
                let text = mutated.spec.to_string();
                assert_eq!(pod["spec"].get("initContainers").is_none(), mutated.spec.get("initContainers").is_none(), "{pod}\n{text}");
                let again = pod::mutate(&json!({ "spec": mutated.spec }), &sizes, Some("vgpu")).unwrap();
                assert_eq!(again, None, "nothing is left to replace: {pod}\n{text}");
            }
            Err(_) => refused += 1,
        }
    }
    assert!(changed > ROUNDS / 30 && refused > ROUNDS / 30, "{changed} changed, {refused} refused: the generator is too wild or too tame");
}

#[tokio::test]
async fn no_review_makes_the_webhook_panic() {
    // A server that refuses connections: what the API server would answer does not matter here, and reviews end with an error there.
    let client = kube::Client::try_from(kube::Config::new("http://127.0.0.1:1".parse().unwrap())).unwrap();
    let webhook = Webhook { client, runtime_class: Some("vgpu".to_owned()) };
    let mut random = Random(0x5eed_0002);
    for _ in 0..ROUNDS / 2 {
        let mut review =
            json!({ "request": { "uid": "u", "operation": "CREATE", "namespace": "team", "dryRun": true, "object": random.pod() } });
        if random.below(3) == 0 {
            random.damage(&mut review);
        }
        if let Ok(response) = webhook.review(&review).await {
            assert!(response["response"]["allowed"].is_boolean(), "{review}");
        }
    }
}

#[test]
fn no_text_makes_quantities_panic() {
    let mut random = Random(0x5eed_0003);
    let mut parsed = 0;
    for _ in 0..ROUNDS * 40 {
        let text = random.text();
        let (rounded, exact) = (quantity::parse(&text), quantity::parse_exact(&text));
        assert!(exact.is_none() || exact == rounded, "{text:?}: {exact:?} {rounded:?}");
        if let Some(bytes) = rounded {
            parsed += 1;
            assert_eq!(quantity::parse(&quantity::format_mib(bytes)), Some(bytes >> 20 << 20), "{text:?}");
        }
    }
    assert!(parsed > ROUNDS / 10, "{parsed} of the texts are quantities");
}
