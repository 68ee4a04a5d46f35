package ytlocal

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"

	"go.ytsaurus.tech/yt/go/yterrors"
)

// statusError is an error that has an HTTP status of its own. Errors without one are answered with 400, as the real
// proxy answers errors of commands.
type statusError struct {
	status int
	err    *yterrors.Error
}

func (e *statusError) Error() string { return e.err.Error() }
func (e *statusError) Unwrap() error { return e.err }

// fail builds an error with one of the cluster's codes.
func fail(code yterrors.ErrorCode, format string, args ...any) *yterrors.Error {
	return &yterrors.Error{Code: code, Message: fmt.Sprintf(format, args...)}
}

// failStatus is fail for an answer with a status other than 400.
func failStatus(status int, code yterrors.ErrorCode, format string, args ...any) error {
	return &statusError{status: status, err: fail(code, format, args...)}
}

// with adds an attribute to an error.
func with(err *yterrors.Error, name string, value any) *yterrors.Error {
	err.AddAttr(name, value)
	return err
}

// asYT finds the cluster's error in err, or makes a generic one (code 1) of it.
func asYT(err error) (status int, yt *yterrors.Error) {
	status = http.StatusBadRequest
	if se, ok := errors.AsType[*statusError](err); ok {
		return se.status, se.err
	}
	if yt, ok := errors.AsType[*yterrors.Error](err); ok {
		return status, yt
	}
	return status, &yterrors.Error{Code: yterrors.CodeGeneric, Message: err.Error()}
}

// cause is the text of an error that becomes part of another one's message.
func cause(err error) string {
	_, e := asYT(err)
	return e.Message
}

// errorMap is the plain form of an error, as bodies, headers and batch results carry it.
func errorMap(e *yterrors.Error) map[string]any {
	inner := make([]any, 0, len(e.InnerErrors))
	for _, i := range e.InnerErrors {
		inner = append(inner, errorMap(i))
	}
	attrs := e.Attributes
	if attrs == nil {
		attrs = map[string]any{}
	}
	return map[string]any{
		"code":         int64(e.Code),
		"message":      e.Message,
		"attributes":   attrs,
		"inner_errors": inner,
	}
}

// errorJSON is errorMap as one line of JSON in which bytes beyond ASCII are code points, as the cluster writes it.
func errorJSON(e *yterrors.Error) []byte {
	b, err := json.Marshal(toJSON(errorMap(e), jsonOptions{encodeUTF8: true}))
	if err != nil {
		// Only a value that JSON has no word for (NaN) leads here.
		b, _ = json.Marshal(map[string]any{"code": int64(e.Code), "message": "the error has attributes that JSON cannot carry",
			"attributes": map[string]any{}, "inner_errors": []any{}})
	}
	return asciiJSON(b)
}

// asciiJSON escapes what is beyond ASCII: a header must not carry it.
func asciiJSON(b []byte) []byte {
	out := make([]byte, 0, len(b))
	for _, r := range string(b) {
		switch {
		case r < 0x80:
			out = append(out, byte(r))
		case r <= 0xffff:
			out = fmt.Appendf(out, `\u%04x`, r)
		default:
			r -= 0x10000
			out = fmt.Appendf(out, `\u%04x\u%04x`, 0xd800+(r>>10), 0xdc00+(r&0x3ff))
		}
	}
	return out
}

// setErrorHeaders puts an error where clients of commands look first. header is a response header or its trailer.
func setErrorHeaders(header http.Header, e *yterrors.Error) {
	header.Set("X-YT-Error", string(errorJSON(e)))
	header.Set("X-YT-Response-Code", strconv.Itoa(int(e.Code)))
	message, _ := json.Marshal(e.Message)
	header.Set("X-YT-Response-Message", string(asciiJSON(message)))
}

// writeError answers a command's error: status, headers, and the same JSON as body.
func writeError(w http.ResponseWriter, err error) {
	status, e := asYT(err)
	setErrorHeaders(w.Header(), e)
	writeErrorBody(w, status, e)
}

// writeErrorBody answers with the JSON body alone, as the routes beside the commands do.
func writeErrorBody(w http.ResponseWriter, status int, e *yterrors.Error) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(errorJSON(e))
}
