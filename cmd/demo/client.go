package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"time"
)

// client speaks the cluster's HTTP API in JSON, as any user's script would. It is for the demo's few steps; the product
// asks through package ytclient.
type client struct {
	url   string
	token string
}

// maxAnswer bounds what is read of one answer.
const maxAnswer = 1 << 20

// query calls a command that changes nothing and returns its answer.
func (c *client) query(ctx context.Context, command string, parameters map[string]any) ([]byte, error) {
	return c.call(ctx, http.MethodGet, command, parameters, nil)
}

// change calls a command that makes something and returns its answer.
func (c *client) change(ctx context.Context, command string, parameters map[string]any) ([]byte, error) {
	return c.call(ctx, http.MethodPost, command, nil, parameters)
}

// set writes a value to a path.
func (c *client) set(ctx context.Context, path string, value any) error {
	_, err := c.call(ctx, http.MethodPut, "set", map[string]any{"path": path}, value)
	return err
}

// call sends the parameters in a header, the input in the body.
func (c *client) call(ctx context.Context, method, command string, parameters map[string]any, input any) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	var body io.Reader
	if input != nil {
		encoded, err := json.Marshal(input)
		if err != nil {
			return nil, fmt.Errorf("%s: encode the input: %w", command, err)
		}
		body = bytes.NewReader(encoded)
	}
	request, err := http.NewRequestWithContext(ctx, method, c.url+"/api/v4/"+command, body)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", command, err)
	}
	request.Header.Set("Authorization", "OAuth "+c.token)
	for _, format := range []string{"X-YT-Header-Format", "X-YT-Input-Format", "X-YT-Output-Format"} {
		request.Header.Set(format, `"json"`)
	}
	if parameters != nil {
		encoded, err := json.Marshal(parameters)
		if err != nil {
			return nil, fmt.Errorf("%s: encode the parameters: %w", command, err)
		}
		request.Header.Set("X-YT-Parameters", string(encoded))
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", command, err)
	}
	defer response.Body.Close()
	answer, err := io.ReadAll(io.LimitReader(response.Body, maxAnswer))
	if err != nil {
		return nil, fmt.Errorf("%s: read the answer: %w", command, err)
	}
	if response.StatusCode/100 != 2 {
		return nil, fmt.Errorf("%s: %s: %s", command, response.Status, errorMessage(answer))
	}
	return answer, nil
}

// errorMessage is the message of the cluster's error, or the answer itself when it is something else.
func errorMessage(answer []byte) string {
	var failure struct {
		Message string `json:"message"`
	}
	if json.Unmarshal(answer, &failure) == nil && failure.Message != "" {
		return failure.Message
	}
	return string(answer[:min(len(answer), 256)])
}
