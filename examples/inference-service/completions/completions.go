// Package completions is a small inference server in the shape that clients of the OpenAI API know: chat completions, whole
// or as a stream of server-sent events, a token each. Its model is a parrot that names its job; put yours in its place.
package completions

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"time"

	"taskproxy/examples/job"
)

const (
	modelName = "parrot"
	maxBody   = 1 << 20 // bytes of a request
	maxTokens = 1000    // of an answer, and the default
	// pause is how long the model thinks about a token.
	pause = 50 * time.Millisecond
)

// Request is what a client asks for. Fields that are not here are ignored.
type Request struct {
	Model    string    `json:"model"` // empty: the only one that there is
	Messages []Message `json:"messages"`
	// MaxTokens cuts the answer; 0 means 1000, which is also the most.
	MaxTokens int  `json:"max_tokens"`
	Stream    bool `json:"stream"`
}

// Message is one of a conversation.
type Message struct {
	Role    string `json:"role,omitempty"`
	Content string `json:"content,omitempty"`
}

// Completion is an answer, or with object "chat.completion.chunk" a piece of one.
type Completion struct {
	ID      string   `json:"id"`
	Object  string   `json:"object"`
	Created int64    `json:"created"` // seconds since 1970
	Model   string   `json:"model"`
	Choices []Choice `json:"choices"`
}

// Choice has the message of a whole answer, or the delta of a piece.
type Choice struct {
	Index   int      `json:"index"`
	Message *Message `json:"message,omitempty"`
	Delta   *Message `json:"delta,omitempty"`
	// FinishReason is "stop" or "length"; nil while more is to come.
	FinishReason *string `json:"finish_reason"`
}

// Serve is the job's work: it answers on the listener until the context ends, which cuts the streams that run.
func Serve(ctx context.Context, info job.Info, listener net.Listener) error {
	return job.ServeHTTP(ctx, listener, Handler(info))
}

// Handler serves POST /v1/chat/completions, GET /v1/models and GET /healthz.
func Handler(info job.Info) http.Handler {
	s := &server{info: info}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /v1/chat/completions", s.complete)
	mux.HandleFunc("GET /v1/models", func(w http.ResponseWriter, _ *http.Request) {
		reply(w, http.StatusOK, map[string]any{"object": "list", "data": []any{map[string]any{"id": modelName, "object": "model"}}})
	})
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "ok\n") })
	return mux
}

type server struct{ info job.Info }

func (s *server) complete(w http.ResponseWriter, r *http.Request) {
	request, err := read(http.MaxBytesReader(w, r.Body, maxBody))
	if err != nil {
		status := http.StatusBadRequest
		if tooLarge := new(http.MaxBytesError); errors.As(err, &tooLarge) {
			status = http.StatusRequestEntityTooLarge
		}
		reply(w, status, map[string]any{"error": map[string]any{"message": err.Error(), "type": "invalid_request_error"}})
		return
	}
	tokens, reason := s.model(request)
	answer := Completion{
		ID: fmt.Sprintf("chatcmpl-%s-%d", s.info.JobID, time.Now().UnixNano()), Object: "chat.completion",
		Created: time.Now().Unix(), Model: modelName,
	}
	if request.Stream {
		stream(w, r, answer, tokens, reason)
		return
	}
	for range tokens {
		if !think(r.Context()) {
			return // nobody waits any more
		}
	}
	answer.Choices = []Choice{{Message: &Message{Role: "assistant", Content: strings.Join(tokens, "")}, FinishReason: &reason}}
	reply(w, http.StatusOK, answer)
}

// read is the request, or what is wrong with it.
func read(body io.Reader) (Request, error) {
	var request Request
	if err := json.NewDecoder(body).Decode(&request); err != nil {
		return Request{}, fmt.Errorf("the body is no chat completion request in JSON: %w", err)
	}
	switch {
	case request.Model != "" && request.Model != modelName:
		return Request{}, fmt.Errorf("model=%q: there is only %q", request.Model, modelName)
	case len(request.Messages) == 0:
		return Request{}, errors.New(`messages is empty: want one at least, as {"role": "user", "content": "..."}`)
	case request.MaxTokens < 0 || request.MaxTokens > maxTokens:
		return Request{}, fmt.Errorf("max_tokens=%d: want 0 to %d", request.MaxTokens, maxTokens)
	}
	return request, nil
}

// model says the last message again, a token for each word.
func (s *server) model(request Request) (tokens []string, reason string) {
	text := s.info.String() + " heard: " + request.Messages[len(request.Messages)-1].Content
	for i, word := range strings.Fields(text) {
		if i > 0 {
			word = " " + word
		}
		tokens = append(tokens, word)
	}
	most := request.MaxTokens
	if most == 0 {
		most = maxTokens
	}
	if len(tokens) > most {
		return tokens[:most], "length"
	}
	return tokens, "stop"
}

// stream sends each token as soon as there is one, and at the end [DONE]. A stream that ends without it was cut.
func stream(w http.ResponseWriter, r *http.Request, chunk Completion, tokens []string, reason string) {
	flusher := http.NewResponseController(w)
	w.Header().Set("Content-Type", "text/event-stream")
	w.Header().Set("Cache-Control", "no-store")
	send := func(choice Choice) bool {
		chunk.Object, chunk.Choices = "chat.completion.chunk", []Choice{choice}
		data, err := json.Marshal(chunk)
		if err != nil {
			return false
		}
		_, err = fmt.Fprintf(w, "data: %s\n\n", data)
		return err == nil && flusher.Flush() == nil
	}
	for i, token := range tokens {
		delta := &Message{Content: token}
		if i == 0 {
			delta.Role = "assistant"
		}
		if !think(r.Context()) || !send(Choice{Delta: delta}) {
			return
		}
	}
	if send(Choice{Delta: &Message{}, FinishReason: &reason}) {
		io.WriteString(w, "data: [DONE]\n\n")
	}
}

// think takes a token's time. It reports false when nobody waits for it any more.
func think(ctx context.Context) bool {
	select {
	case <-time.After(pause):
		return true
	case <-ctx.Done():
		return false
	}
}

func reply(w http.ResponseWriter, status int, value any) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(value) // fails only when the client has left
}
