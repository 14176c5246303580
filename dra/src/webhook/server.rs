//! Answering the API server.

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::{Bytes, Incoming};
use hyper_util::rt::{TokioIo, TokioTimer};
use k8s_openapi::api::resource::v1::{ResourceClaimTemplate, ResourceSlice};
use kube::api::{ListParams, PostParams};
use kube::{Api, Client};
use serde_json::{Value, json};
use tokio::net::TcpListener;

use crate::cluster::describe;
use crate::names::{DRIVER, MEMORY};
use crate::quantity;
use crate::webhook::pod;
use crate::webhook::tls::Tls;

/// Largest review that is read.
const MAX_BODY_BYTES: usize = 8 << 20;

/// What answers.
pub struct Webhook {
    /// The cluster in which templates are made.
    pub client: Client,
    /// The RuntimeClass that pods get.
    pub class: Option<String>,
}

impl Webhook {
    /// Answers one AdmissionReview.
    ///
    /// # Errors
    /// It is none.
    pub async fn review(&self, review: &Value) -> Result<Value, &'static str> {
        let request =
            review.get("request").filter(|request| request["uid"].is_string()).ok_or("accepted is an AdmissionReview with a request")?;
        let response = match self.decide(request).await {
            Ok(None) => json!({ "uid": request["uid"], "allowed": true }),
            Ok(Some(spec)) => {
                let patch = json!([{ "op": "replace", "path": "/spec", "value": spec }]).to_string();
                json!({ "uid": request["uid"], "allowed": true, "patchType": "JSONPatch", "patch": base64(patch.as_bytes()) })
            }
            Err(why) => json!({ "uid": request["uid"], "allowed": false, "status": { "code": 422, "reason": "Invalid", "message": why } }),
        };
        Ok(json!({ "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response }))
    }

    async fn decide(&self, request: &Value) -> Result<Option<Value>, String> {
        let object = &request["object"];
        if request["operation"] != "CREATE" || object["kind"] != "Pod" {
            return Ok(None);
        }
        let sizes = if pod::needs_gpu_sizes(object) { self.gpu_sizes().await? } else { BTreeSet::new() };
        let Some(changed) = pod::mutate(object, &sizes, self.class.as_deref())? else { return Ok(None) };
        if request["dryRun"] != true {
            let namespace = request["namespace"].as_str().ok_or("the pod has no namespace")?;
            let templates: Api<ResourceClaimTemplate> = Api::namespaced(self.client.clone(), namespace);
            for template in &changed.templates {
                let template = serde_json::from_value(template.clone()).map_err(|error| error.to_string())?;
                match templates.create(&PostParams::default(), &template).await {
                    Err(kube::Error::Api(status)) if status.code == 409 => {}
                    other => drop(other.map_err(|error| format!("no ResourceClaimTemplate can be made: {}", describe(&error)))?),
                }
            }
        }
        Ok(Some(changed.spec))
    }

    /// The memories of the cluster's whole GPUs, in bytes.
    async fn gpu_sizes(&self) -> Result<BTreeSet<u64>, String> {
        let slices: Api<ResourceSlice> = Api::all(self.client.clone());
        let chosen = ListParams::default().fields(&format!("spec.driver={DRIVER}"));
        let listed = slices.list(&chosen).await.map_err(|error| format!("the GPUs' memory cannot be looked up: {}", describe(&error)))?;
        let all = listed.items.into_iter().flat_map(|slice| slice.spec.devices.unwrap_or_default());
        let whole = all.filter(|device| {
            let kind = device.attributes.as_ref().and_then(|attributes| attributes.get("type")?.string.as_deref());
            kind == Some("gpu")
        });
        Ok(whole.filter_map(|device| quantity::parse(&device.capacity?.get(MEMORY)?.value.0)).collect())
    }

    async fn answer(self: Arc<Self>, request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
        let reply = |code: StatusCode, text: String| {
            let mut response = Response::new(Full::new(Bytes::from(text)));
            *response.status_mut() = code;
            response.headers_mut().insert(http::header::CONTENT_TYPE, http::HeaderValue::from_static("application/json"));
            response
        };
        let (method, path) = (request.method().clone(), request.uri().path().to_owned());
        Ok(match (method, path.as_str()) {
            (Method::GET, "/healthz") => reply(StatusCode::OK, "{}".to_owned()),
            (Method::POST, "/mutate") => {
                let body = Limited::new(request.into_body(), MAX_BODY_BYTES).collect().await.ok().map(|body| body.to_bytes());
                let review: Option<Value> = body.and_then(|body| serde_json::from_slice(&body).ok());
                match review {
                    Some(review) => match self.review(&review).await {
                        Ok(answer) => reply(StatusCode::OK, answer.to_string()),
                        Err(why) => reply(StatusCode::BAD_REQUEST, json!({ "error": why }).to_string()),
                    },
                    None => reply(StatusCode::BAD_REQUEST, json!({ "error": "accepted is JSON" }).to_string()),
                }
            }
            _ => reply(StatusCode::NOT_FOUND, "{}".to_owned()),
        })
    }
}

/// Serves until `stop` is there.
pub async fn serve(webhook: Webhook, listener: TcpListener, mut tls: Tls, say: fn(&str), stop: impl Future<Output = ()>) {
    let webhook = Arc::new(webhook);
    let accept = async {
        loop {
            let Ok((stream, _)) = listener.accept().await else {
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            };
            let acceptor = match tls.acceptor() {
                Ok(acceptor) => acceptor,
                Err(why) => {
                    say(&why);
                    continue;
                }
            };
            let webhook = Arc::clone(&webhook);
            tokio::spawn(async move {
                let Ok(Ok(stream)) = tokio::time::timeout(Duration::from_secs(10), acceptor.accept(stream)).await else { return };
                let service = hyper::service::service_fn(move |request| Arc::clone(&webhook).answer(request));
                let mut server = hyper::server::conn::http1::Builder::new();
                server.timer(TokioTimer::new()).header_read_timeout(Duration::from_secs(60));
                let _ = server.serve_connection(TokioIo::new(stream), service).await;
            });
        }
    };
    tokio::select! { () = accept => {}, () = stop => {} }
}

/// Base64, as JSON has patches in AdmissionReviews.
fn base64(bytes: &[u8]) -> String {
    use base64::Engine as _;
    base64::engine::general_purpose::STANDARD.encode(bytes)
}
