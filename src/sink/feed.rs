//! The way of a record into librdkafka: its bytes are copied once, into the message that is sent, and its topic is found
//! through a handle that is kept. The crate's own `send` looks the topic up by name, under a lock, for each record.

use std::collections::HashMap;
use std::ffi::{CString, c_void};
use std::ptr;
use std::sync::Arc;

use rdkafka::bindings as native;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::types::RDKafka;

use crate::router::{Header, Record};

/// Handles of the topics that one client was fed for. Must be dropped before the client.
pub(super) struct Handles {
    client: *mut RDKafka,
    /// Most records go where the one before went.
    last: Option<(Arc<str>, *mut native::rd_kafka_topic_t)>,
    by_name: HashMap<Arc<str>, *mut native::rd_kafka_topic_t>,
}

// SAFETY: a client and its topics may be used from any thread; the map is owned.
unsafe impl Send for Handles {}

impl Handles {
    /// # Safety
    ///
    /// `client` must be a producer, and must outlive the handles.
    pub(super) unsafe fn of(client: *mut RDKafka) -> Handles {
        Handles { client, last: None, by_name: HashMap::new() }
    }

    /// Puts a copy of the record on the producer's queue for the partition. Its report carries `ticket`.
    pub(super) fn feed(&mut self, ticket: usize, record: &Record, partition: i32) -> Result<(), KafkaError> {
        let topic = self.topic(&record.topic)?;
        let headers = headers_of(&record.headers);
        let (value, key) = (memory(record.value.as_deref()), memory(record.key.as_deref()));
        let opaque = Union { ptr: ptr::without_provenance_mut::<c_void>(ticket) };
        use native::rd_kafka_vtype_t as Type;
        let arguments = [
            argument(Type::RD_KAFKA_VTYPE_RKT, Union { rkt: topic }),
            argument(Type::RD_KAFKA_VTYPE_PARTITION, Union { i32_: partition }),
            argument(Type::RD_KAFKA_VTYPE_MSGFLAGS, Union { i: native::RD_KAFKA_MSG_F_COPY }),
            argument(Type::RD_KAFKA_VTYPE_VALUE, Union { mem: value }),
            argument(Type::RD_KAFKA_VTYPE_KEY, Union { mem: key }),
            argument(Type::RD_KAFKA_VTYPE_OPAQUE, opaque),
            argument(Type::RD_KAFKA_VTYPE_HEADERS, Union { headers }),
        ];
        // Without headers the last argument is left out: librdkafka takes no null there.
        let count = if headers.is_null() { arguments.len() - 1 } else { arguments.len() };
        // SAFETY: the client is alive, by the contract of `of`; every argument has the member of the union that its type
        // asks for; key and value are copied before the call returns, as the flag asks.
        let error = unsafe { native::rd_kafka_produceva(self.client, arguments.as_ptr(), count) };
        if error.is_null() {
            return Ok(());
        }
        // SAFETY: the error is ours to free; after a failure the headers still are, too.
        let code = unsafe {
            let code = native::rd_kafka_error_code(error);
            native::rd_kafka_error_destroy(error);
            if !headers.is_null() {
                native::rd_kafka_headers_destroy(headers);
            }
            code
        };
        Err(KafkaError::MessageProduction(code.into()))
    }

    fn topic(&mut self, name: &Arc<str>) -> Result<*mut native::rd_kafka_topic_t, KafkaError> {
        if let Some((last, handle)) = &self.last
            && Arc::ptr_eq(last, name)
        {
            return Ok(*handle);
        }
        let handle = match self.by_name.get(name) {
            Some(handle) => *handle,
            None => {
                let text = CString::new(&**name)?;
                // SAFETY: the client is alive; the name is copied; no configuration means the client's own.
                let handle = unsafe { native::rd_kafka_topic_new(self.client, text.as_ptr(), ptr::null_mut()) };
                if handle.is_null() {
                    // SAFETY: reads a number of this thread.
                    let code = unsafe { native::rd_kafka_last_error() };
                    return Err(KafkaError::MessageProduction(RDKafkaErrorCode::from(code)));
                }
                self.by_name.insert(name.clone(), handle);
                handle
            }
        };
        self.last = Some((name.clone(), handle));
        Ok(handle)
    }
}

impl Drop for Handles {
    fn drop(&mut self) {
        for handle in self.by_name.values() {
            // SAFETY: each was made once, is freed once, and its client is alive. What is fed already keeps its topic.
            unsafe { native::rd_kafka_topic_destroy(*handle) };
        }
    }
}

type Union = native::rd_kafka_vu_s__bindgen_ty_1;
type Memory = native::rd_kafka_vu_s__bindgen_ty_1__bindgen_ty_1;

fn argument(vtype: native::rd_kafka_vtype_t, u: Union) -> native::rd_kafka_vu_t {
    native::rd_kafka_vu_t { vtype, u }
}

/// None is null, which is not the same as empty.
fn memory(bytes: Option<&[u8]>) -> Memory {
    match bytes {
        Some(bytes) => Memory { ptr: bytes.as_ptr().cast_mut().cast(), size: bytes.len() },
        None => Memory { ptr: ptr::null_mut(), size: 0 },
    }
}

/// Null where there are none.
fn headers_of(headers: &[Header]) -> *mut native::rd_kafka_headers_t {
    if headers.is_empty() {
        return ptr::null_mut();
    }
    // SAFETY: a list of our own; names and values are copied into it.
    unsafe {
        let list = native::rd_kafka_headers_new(headers.len());
        for header in headers {
            let value = memory(header.value.as_deref());
            let (name, length) = (header.name.as_ptr().cast(), header.name.len().cast_signed());
            // Fails for a list of somebody else only.
            native::rd_kafka_header_add(list, name, length, value.ptr, value.size.cast_signed());
        }
        list
    }
}
