//! The kubelet's side: the two sockets, and who answers what on them.

use std::collections::HashMap;
use std::convert::Infallible;
use std::future::{Future, ready};
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures_util::Stream;
use http::{Request, Response};
use tokio::sync::{Notify, watch};
use tonic::body::Body;
use tonic::server::{Grpc, ServerStreamingService, UnaryService};
use tonic::{Code, Status};
use tonic_prost::ProstCodec;
use tower_service::Service;

use crate::driver::Driver;
use crate::health;
use crate::names::DRIVER;
use crate::proto::{
    ClaimsRequest, DeviceHealth, Empty, HealthResponse, PluginInfo, PrepareResponse, PreparedClaim, RegistrationStatus, UnprepareResponse,
    UnpreparedClaim,
};

/// The services of ours by the names under which the kubelet knows them: those that it can choose from, the newest first, and what it may
/// use beside them.
pub const SERVICES: [&str; 3] = ["v1.DRAPlugin", "v1beta1.DRAPlugin", "v1alpha1.DRAResourceHealth"];

/// What answers the kubelet.
#[derive(Clone)]
pub struct Plugin {
    driver: Arc<Driver>,
    /// The socket of the DRA services.
    endpoint: PathBuf,
    /// Told when we are registered: the kubelet may have dropped our slices before.
    registered: Arc<Notify>,
    /// How the devices are.
    health: watch::Receiver<Vec<DeviceHealth>>,
    say: fn(&str),
}

impl Plugin {
    /// One that answers with what `driver` does, and with what `health` says.
    #[must_use]
    pub fn new(
        driver: Arc<Driver>,
        endpoint: PathBuf,
        registered: Arc<Notify>,
        health: watch::Receiver<Vec<DeviceHealth>>,
        say: fn(&str),
    ) -> Self {
        Self { driver, endpoint, registered, health, say }
    }

    async fn answer(self, request: Request<Body>) -> Response<Body> {
        let path = request.uri().path().to_owned();
        match path.as_str() {
            "/pluginregistration.Registration/GetInfo" => unary(request, |_: Empty| ready(Ok(self.info()))).await,
            "/pluginregistration.Registration/NotifyRegistrationStatus" => {
                unary(request, |status| {
                    self.notified(&status);
                    ready(Ok(Empty {}))
                })
                .await
            }
            "/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin/NodePrepareResources"
            | "/k8s.io.kubelet.pkg.apis.dra.v1beta1.DRAPlugin/NodePrepareResources" => unary(request, |claims| self.prepare(claims)).await,
            "/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin/NodeUnprepareResources"
            | "/k8s.io.kubelet.pkg.apis.dra.v1beta1.DRAPlugin/NodeUnprepareResources" => {
                unary(request, |claims| self.unprepare(claims)).await
            }
            "/v1alpha1.DRAResourceHealth/NodeWatchResources" => {
                Grpc::new(ProstCodec::<HealthResponse, Empty>::default()).server_streaming(HealthService(self.health), request).await
            }
            _ => Status::new(Code::Unimplemented, "").into_http(),
        }
    }

    fn info(&self) -> PluginInfo {
        PluginInfo {
            r#type: "DRAPlugin".to_owned(),
            name: DRIVER.to_owned(),
            endpoint: self.endpoint.display().to_string(),
            supported_versions: SERVICES.map(str::to_owned).into(),
        }
    }

    fn notified(&self, status: &RegistrationStatus) {
        if status.plugin_registered {
            (self.say)("registered with the kubelet");
        } else {
            (self.say)(&format!("the kubelet does not register us: {}", status.error));
        }
        self.registered.notify_one();
    }

    async fn prepare(&self, asked: ClaimsRequest) -> Result<PrepareResponse, Status> {
        let mut claims = HashMap::new();
        for claim in asked.claims {
            let (devices, error) = match self.driver.prepare(&claim).await {
                Ok(devices) => (devices, String::new()),
                Err(why) => {
                    (self.say)(&format!("claim {}/{} is not prepared: {why}", claim.namespace, claim.name));
                    (Vec::new(), why)
                }
            };
            claims.insert(claim.uid, PreparedClaim { devices, error });
        }
        Ok(PrepareResponse { claims })
    }

    async fn unprepare(&self, asked: ClaimsRequest) -> Result<UnprepareResponse, Status> {
        let mut claims = HashMap::new();
        for claim in asked.claims {
            let error = self.driver.unprepare(&claim.uid).await.err().unwrap_or_default();
            if !error.is_empty() {
                (self.say)(&format!("claim {}/{} stays prepared: {error}", claim.namespace, claim.name));
            }
            claims.insert(claim.uid, UnpreparedClaim { error });
        }
        Ok(UnprepareResponse { claims })
    }
}

impl Service<Request<Body>> for Plugin {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let this = self.clone();
        Box::pin(async move { Ok(this.answer(request).await) })
    }
}

/// Reads one message, and writes the answer.
async fn unary<Q, A, F>(request: Request<Body>, ask: impl FnOnce(Q) -> F + Send) -> Response<Body>
where
    Q: prost::Message + Default + Send + Sync + 'static,
    A: prost::Message + Default + Send + Sync + 'static,
    F: Future<Output = Result<A, Status>> + Send,
{
    Grpc::new(ProstCodec::<A, Q>::default()).unary(UnaryHandler(Some(ask)), request).await
}

/// Answers with one message after the other.
struct HealthService(watch::Receiver<Vec<DeviceHealth>>);

impl ServerStreamingService<Empty> for HealthService {
    type Response = HealthResponse;
    type ResponseStream = Pin<Box<dyn Stream<Item = Result<HealthResponse, Status>> + Send>>;
    type Future = std::future::Ready<Result<tonic::Response<Self::ResponseStream>, Status>>;

    fn call(&mut self, _: tonic::Request<Empty>) -> Self::Future {
        let all: Self::ResponseStream = Box::pin(health::updates(self.0.clone()));
        ready(Ok(tonic::Response::new(all)))
    }
}

struct UnaryHandler<T>(Option<T>);

impl<Q, A, F, T> UnaryService<Q> for UnaryHandler<T>
where
    T: FnOnce(Q) -> F,
    F: Future<Output = Result<A, Status>> + Send,
{
    type Response = A;
    type Future = UnaryResponse<F>;

    fn call(&mut self, request: tonic::Request<Q>) -> Self::Future {
        // tonic calls it once for each request.
        UnaryResponse(self.0.take().map(|ask| Box::pin(ask(request.into_inner()))))
    }
}

/// The answer to come.
struct UnaryResponse<F>(Option<Pin<Box<F>>>);

impl<A, F: Future<Output = Result<A, Status>>> Future for UnaryResponse<F> {
    type Output = Result<tonic::Response<A>, Status>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        match &mut self.0 {
            Some(answer) => answer.as_mut().poll(context).map_ok(tonic::Response::new),
            None => Poll::Ready(Err(Status::internal("asked twice"))),
        }
    }
}
