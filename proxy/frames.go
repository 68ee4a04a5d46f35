package proxy

// frames follows the frames of a WebSocket (RFC 6455, section 5.2) in a stream of bytes, to know where one ends and another
// may be put in. It keeps no bytes and judges nothing: reserved bits, opcodes and masks of a server are what the two ends make
// of them, and their lengths count all the same. The zero value is where a connection begins.
type frames struct {
	part   framePart
	more   uint8  // bytes of the part to come, of lengthPart and maskPart
	mask   bool   // the frame has one
	opcode byte   // of the frame
	left   uint64 // bytes of the payload to come
	closed bool   // a close frame has passed, after which there must be no other
}

type framePart uint8

const (
	opcodePart framePart = iota
	sizePart
	lengthPart
	maskPart
	payloadPart
)

const opcodeClose = 8

// between reports that the next byte begins a frame.
func (f *frames) between() bool { return f.part == opcodePart }

// pass follows all of b.
func (f *frames) pass(b []byte) {
	for len(b) > 0 {
		b = b[f.next(b):]
	}
}

// next follows b up to the end of the frame that it begins in, or is about to begin, and returns how many bytes these are: all
// of b if the frame goes on after it.
func (f *frames) next(b []byte) (n int) {
	for n < len(b) {
		if f.part == payloadPart {
			take := min(uint64(len(b)-n), f.left)
			n, f.left = n+int(take), f.left-take
		} else {
			f.header(b[n])
			n++
		}
		// The frame is over after its payload, and one without a payload after its header.
		if f.part == payloadPart && f.left == 0 {
			f.part = opcodePart
			f.closed = f.closed || f.opcode == opcodeClose
			break
		}
	}
	return n
}

// header follows one byte of a frame's header.
func (f *frames) header(c byte) {
	switch f.part {
	case opcodePart:
		f.opcode, f.part = c&0x0f, sizePart
		return
	case sizePart:
		f.mask, f.left = c&0x80 != 0, 0
		switch size := c & 0x7f; size {
		case 126:
			f.more = 2
		case 127:
			f.more = 8
		default:
			f.left, f.more = uint64(size), 0
		}
		f.part = lengthPart
	case lengthPart:
		f.left, f.more = f.left<<8|uint64(c), f.more-1
	case maskPart:
		f.more--
	}
	if f.part == lengthPart && f.more == 0 && f.mask {
		f.part, f.more = maskPart, 4
	} else if f.more == 0 {
		f.part = payloadPart
	}
}

// Status codes of a close frame (RFC 6455, section 7.4.1).
const (
	closeGoingAway       = 1001
	closePolicyViolation = 1008
)

// maxCloseReason is what fits into a control frame beside the code, in bytes.
const maxCloseReason = 123

// closeFrame is a server's close frame that says why a tunnel ends.
func closeFrame(c *cause) []byte {
	code := closeGoingAway
	if c == causeRevoked {
		code = closePolicyViolation
	}
	reason := c.reason + ": " + c.public
	if len(reason) > maxCloseReason {
		reason = c.reason
	}
	frame := []byte{0x80 | opcodeClose, byte(2 + len(reason)), byte(code >> 8), byte(code & 0xff)}
	return append(frame, reason...)
}
