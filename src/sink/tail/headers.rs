//! The headers of a record that was read, straight from librdkafka: the crate's own iterator panics on a name that is not
//! UTF-8, and other writers may write any.

use std::ffi::CStr;
use std::marker::PhantomData;
use std::ptr;

use rdkafka::bindings as native;
use rdkafka::message::BorrowedMessage;

/// Name and value of each header, in their order. See the module.
#[derive(Clone)]
pub struct Headers<'m> {
    list: *mut native::rd_kafka_headers_t,
    next: usize,
    message: PhantomData<&'m ()>,
}

impl<'m> Headers<'m> {
    pub fn of(message: &'m BorrowedMessage<'_>) -> Headers<'m> {
        let mut list = ptr::null_mut();
        // SAFETY: the message is alive for 'm, and the list belongs to it. Where it has none, or they cannot be read, the
        // pointer stays null.
        let _ = unsafe { native::rd_kafka_message_headers(message.ptr(), &mut list) };
        Headers { list, next: 0, message: PhantomData }
    }
}

impl<'m> Iterator for Headers<'m> {
    type Item = (&'m [u8], Option<&'m [u8]>);

    fn next(&mut self) -> Option<Self::Item> {
        if self.list.is_null() {
            return None;
        }
        let (mut name, mut value, mut size) = (ptr::null(), ptr::null(), 0);
        // SAFETY: the list is alive for 'm, as its message is. Past its end this returns an error and sets nothing.
        let found = unsafe { native::rd_kafka_header_get_all(self.list, self.next, &mut name, &mut value, &mut size) };
        if found != native::rd_kafka_resp_err_t::RD_KAFKA_RESP_ERR_NO_ERROR || name.is_null() {
            return None;
        }
        self.next += 1;
        // SAFETY: a name ends with a null byte, a value that is not null has `size` bytes, and both belong to the message.
        let (name, value) = unsafe {
            let value = (!value.is_null()).then(|| std::slice::from_raw_parts(value.cast::<u8>(), size));
            (CStr::from_ptr(name).to_bytes(), value)
        };
        Some((name, value))
    }
}
